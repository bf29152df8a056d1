"""A frontend for a real engine process."""

from runtime.engine.engine_under_test import address, frontend  # noqa: F401
