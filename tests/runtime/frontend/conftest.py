from collections.abc import AsyncIterator

import pytest

from runtime.frontend.harness import Frontend, running_frontend


@pytest.fixture
async def frontend() -> AsyncIterator[Frontend]:
    async with running_frontend() as result:
        yield result
