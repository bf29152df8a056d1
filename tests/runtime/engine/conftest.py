"""A thread for a busy loop, an engine that runs on it, and a clock."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.engine.engine_under_test import address, frontend  # noqa: F401
from runtime.engine.looped_engine import WAIT, Engine
from runtime.fake_clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def engine(pool: ThreadPoolExecutor) -> Iterator[Engine]:
    engine = Engine(pool)
    yield engine
    engine.loop.drain()
    engine.ended.result(WAIT)
