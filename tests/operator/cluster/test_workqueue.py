import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kvasir_operator.cluster.workqueue import Backoff, WorkQueue

SOON = Backoff(first=0.001, most=0.002)


@asynccontextmanager
async def running(
    handle: Callable[[str], Awaitable[float | None]], **options: int
) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue(handle, backoff=SOON, **options)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Handler:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.active: set[str] = set()
        self.gate = asyncio.Event()
        self.called = asyncio.Queue[str]()

    async def __call__(self, key: str) -> float | None:
        assert key not in self.active, "a key is handled twice at the same time"
        self.active.add(key)
        self.calls.append(key)
        self.called.put_nowait(key)
        await self.gate.wait()
        self.active.discard(key)
        return None


async def test_a_burst_of_one_key_is_one_run() -> None:
    handler = Handler()
    async with running(handler) as queue:
        for _ in range(10):
            queue.add("a")
        queue.add("b")
        assert {await handler.called.get(), await handler.called.get()} == {"a", "b"}
        handler.gate.set()
        await asyncio.sleep(0)
        assert sorted(handler.calls) == ["a", "b"]


async def test_keys_added_during_a_run_cause_one_more_run() -> None:
    handler = Handler()
    async with running(handler) as queue:
        queue.add("a")
        await handler.called.get()
        queue.add("a")
        queue.add("a")
        assert handler.calls == ["a"]
        handler.gate.set()
        await handler.called.get()
        await asyncio.sleep(0)
        assert handler.calls == ["a", "a"]


async def test_no_more_run_at_once_than_there_are_workers() -> None:
    handler = Handler()
    async with running(handler, workers=2) as queue:
        for key in "abcd":
            queue.add(key)
        await handler.called.get()
        await handler.called.get()
        assert len(handler.active) == 2
        assert queue.depth == 2
        handler.gate.set()
        await handler.called.get()
        await handler.called.get()


async def test_a_failure_is_tried_again_until_it_succeeds() -> None:
    attempts, done = 0, asyncio.Event()

    async def handle(key: str) -> float | None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise RuntimeError("not yet")
        done.set()
        return None

    async with running(handle) as queue:
        queue.add("a")
        await asyncio.wait_for(done.wait(), 5)
        await asyncio.sleep(0)
        assert attempts == 4
        assert queue.failing == 0


async def test_one_failing_key_does_not_hold_up_the_others() -> None:
    done = asyncio.Event()

    async def handle(key: str) -> float | None:
        if key == "bad":
            raise RuntimeError("always")
        done.set()
        return None

    async with running(handle, workers=1) as queue:
        queue.add("bad")
        queue.add("good")
        await asyncio.wait_for(done.wait(), 5)
        assert queue.failing == 1


async def test_the_returned_delay_calls_it_again() -> None:
    calls, twice = 0, asyncio.Event()

    async def handle(key: str) -> float | None:
        nonlocal calls
        calls += 1
        if calls == 2:
            twice.set()
            return None
        return 0.001

    async with running(handle) as queue:
        queue.add("a")
        await asyncio.wait_for(twice.wait(), 5)


async def test_the_earlier_of_two_times_counts() -> None:
    handler = Handler()
    handler.gate.set()
    async with running(handler) as queue:
        queue.add_after("a", 3600)
        queue.add_after("a", 0.001)
        queue.add_after("a", 3600)
        await asyncio.wait_for(handler.called.get(), 5)


async def test_adding_now_replaces_a_later_time() -> None:
    handler = Handler()
    handler.gate.set()
    async with running(handler) as queue:
        queue.add_after("a", 0.05)
        queue.add("a")
        await asyncio.wait_for(handler.called.get(), 5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handler.called.get(), 0.1)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1), (2, 2), (5, 16), (8, 120), (1000, 120)])
def test_the_delay_doubles_up_to_a_limit(failures: int, seconds: float) -> None:
    delay = Backoff(first=1, most=120).delay(failures)
    assert 0.8 * seconds <= delay <= 1.2 * seconds
