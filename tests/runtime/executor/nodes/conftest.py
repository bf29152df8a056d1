"""A frontend for a real engine with two nodes."""

from runtime.engine.engine_under_test import address, frontend  # noqa: F401
