"""Clients take turns: one with a long queue does not keep the others waiting."""

import asyncio
from contextvars import Context

from kvasir.client.input.fair_queue import FairQueue, current_client


class Workers:
    """Tasks that note when they have their turn, and keep it until they are released."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        self.began: list[str] = []
        self._release = asyncio.Semaphore(0)

    def start(self, client: str) -> "asyncio.Task[None]":
        context = Context()
        context.run(current_client.set, client)
        return asyncio.get_running_loop().create_task(self._work(client), context=context)

    async def finish(self, count: int) -> None:
        for _ in range(count):
            self._release.release()
        for _ in range(5 * count + 5):
            await asyncio.sleep(0)

    async def _work(self, client: str) -> None:
        async with self._queue.turn():
            self.began.append(client)
            await self._release.acquire()


async def test_a_client_with_one_text_is_served_before_anothers_queue() -> None:
    workers = Workers(FairQueue(1))
    tasks = [workers.start("many") for _ in range(100)]
    await workers.finish(1)
    tasks += [workers.start("one"), workers.start("other"), workers.start("other")]
    await workers.finish(5)
    assert workers.began == ["many"] * 3 + ["one", "other", "many", "other"]
    await workers.finish(100)
    await asyncio.gather(*tasks)
    assert len(workers.began) == 103


async def test_so_many_have_their_turn_at_a_time() -> None:
    workers = Workers(FairQueue(2))
    tasks = [workers.start("a") for _ in range(4)]
    await workers.finish(0)
    assert workers.began == ["a"] * 2
    await workers.finish(4)
    await asyncio.gather(*tasks)


async def test_who_leaves_the_queue_gives_its_turn_to_the_next() -> None:
    workers = Workers(FairQueue(1))
    first, second, third = (workers.start(name) for name in "abc")
    await workers.finish(0)
    workers._release.release()
    await asyncio.sleep(0)  # the first ends and the second is given its turn
    second.cancel()
    await workers.finish(1)
    assert workers.began in (["a", "c"], ["a", "b", "c"])
    fourth = workers.start("d")
    await workers.finish(2)
    assert workers.began[-1] == "d"
    await asyncio.gather(first, second, third, fourth, return_exceptions=True)
