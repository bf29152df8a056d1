from collections.abc import AsyncIterator

import pytest

from runtime.frontend.harness import Frontend, running_frontend
from runtime.frontend.parsed_models import EVERYTHING, paced, running_model


@pytest.fixture
async def frontend() -> AsyncIterator[Frontend]:
    async with running_frontend() as result:
        yield result


@pytest.fixture
async def model() -> AsyncIterator[Frontend]:
    """A frontend with parsers, and an engine that answers with reasoning, text and two calls."""
    async with running_model() as frontend:
        frontend.engine.script = paced(EVERYTHING)
        yield frontend
