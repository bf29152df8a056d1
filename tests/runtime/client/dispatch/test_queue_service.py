"""The queue of the frontend over the real link: fairness, and no request that waits although an engine has room."""

import asyncio
import random

import pytest

from kvasir.client.dispatch.request_queue import RequestQueue
from kvasir.client.input.fair_queue import current_client
from kvasir.client.live_request import LiveRequest
from kvasir.link.protocol import AddRequest, FinishReason, RefusalKind
from runtime.client.held import ROWS, Reader, ask, finish, leave, turns
from runtime.client.scripted_engine import ScriptedEngine
from runtime.client.service import Service

ROOM = ROWS + 2


def ask_as(service: Service, client: str, request_id: str, rank: int | None = None) -> Reader:
    current_client.set(client)
    reader = ask(service, request_id, rank)  # its task keeps the client
    current_client.set("")
    return reader


async def test_a_client_with_one_request_waits_for_two_steps_of_work(service: Service) -> None:
    engine = await service.engine()
    readers = [ask_as(service, "crowd", f"r{n}") for n in range(250)]
    sent = [await engine.request() for _ in range(ROOM)]
    readers.append(ask_as(service, "single", "single"))
    await turns()
    await finish(engine, sent[0])
    following = await engine.request()
    await finish(engine, sent[1])
    assert "single" in (following.request_id, (await engine.request()).request_id)
    await leave(readers)


async def test_a_pinned_request_that_waits_delays_no_other_rank(service: Service) -> None:
    engine = await service.engine()
    await service.engine(rank=1)
    readers = [ask(service, f"r{n}", rank=0) for n in range(ROOM + 1)]
    sent = [await engine.request() for _ in range(ROOM)]
    other = ask(service, "other", rank=1)  # is not behind the one that waits for rank 0
    request = await service.engines[1].request()
    assert request.request_id == "other"
    await finish(service.engines[1], request)
    await other
    await finish(engine, sent[0])
    assert (await engine.request()).request_id == f"r{ROOM}"
    await leave(readers)


class Crowd:
    def __init__(self, service: Service, rng: random.Random) -> None:
        self.service = service
        self.rng = rng
        self.readers: dict[str, Reader] = {}
        self.requests: dict[ScriptedEngine, dict[str, AddRequest]] = {}
        self.number = 0

    def read(self) -> None:
        """Take what the engines have got up to now."""
        for engine, requests in self.requests.items():
            for message in engine.messages():
                if isinstance(message, AddRequest):
                    requests[message.request_id] = message
                else:
                    for request_id in getattr(message, "request_ids", ()):
                        requests.pop(request_id, None)

    async def event(self) -> None:
        self.read()
        busy = [engine for engine, requests in self.requests.items() if requests]
        match self.rng.choice(("ask", "ask", "ask", "answer", "answer", "refuse", "leave", "join", "die")):
            case "ask" if len(self.readers) < 60:
                self.number += 1
                rank = self.rng.choice((None, None, None, 0, 1))
                name = f"r{self.number}"
                self.readers[name] = ask_as(self.service, self.rng.choice("abc"), name, rank)
            case "answer" if busy:
                engine = self.rng.choice(busy)
                for name in self.rng.sample(sorted(self.requests[engine]), k=1):
                    await finish(engine, self.requests[engine].pop(name))
            case "refuse" if busy:
                engine = self.rng.choice(busy)
                request = self.requests[engine].pop(self.rng.choice(sorted(self.requests[engine])))
                why = RefusalKind.OVERLOADED
                engine.answer(request, 0, [], FinishReason.ERROR, error="full", refusal=why)
                engine.step([])
            case "leave" if self.readers:
                await leave([self.readers.pop(self.rng.choice(sorted(self.readers)))])
            case "join" if len(self.requests) < 3:
                self.requests[await self.service.engine(self.rng.choice((0, 1)))] = {}
            case "die" if len(self.requests) > 1:
                engine = self.rng.choice(list(self.requests))
                del self.requests[engine]
                engine.close()  # no failed step, so the requests have no strikes
        await turns()

    async def finish(self) -> None:
        """Answer everything: a request that is not woken keeps its reader waiting."""
        for rank in (0, 1):
            self.requests[await self.service.engine(rank)] = {}
        while not all(reader.done() for reader in self.readers.values()):
            self.read()
            for engine, requests in self.requests.items():
                for name in list(requests):
                    await finish(engine, requests.pop(name))
            await asyncio.sleep(0.001)  # the engines' messages come through a thread
        await asyncio.gather(*self.readers.values(), return_exceptions=True)


async def test_random_events_leave_no_request_without_an_end(service: Service) -> None:
    for seed in range(3):
        crowd = Crowd(service, random.Random(seed))
        crowd.requests = {await service.engine(rank): {} for rank in (0, 1)}  # requests may be pinned to these
        for _ in range(150):
            await crowd.event()
        async with asyncio.timeout(60):
            await crowd.finish()
        for engine in list(crowd.requests):
            engine.close()
        await service.until(lambda: not service.llm.engines)
        assert service.llm.live_requests == service.llm.waiting_requests == service.llm.held_requests == 0
        dispatcher = service.llm._dispatcher
        assert not dispatcher._queue.lanes
        assert dispatcher._holding._timer is None


async def test_a_full_engine_is_not_asked_again_at_once(service: Service) -> None:
    """Each refusal would otherwise lead to the next one, as fast as messages go."""
    engine = await service.engine()
    readers = [ask(service, f"r{n}") for n in range(3)]
    for request in [await engine.request() for _ in readers]:
        engine.answer(request, 0, [], FinishReason.ERROR, error="full", refusal=RefusalKind.OVERLOADED)
    await service.until(lambda: service.llm.waiting_requests == 3)
    again = 0
    for _ in range(50):
        await turns()
        again += len(engine.messages())
    assert again == 0
    engine.step([])
    for _ in readers:
        await finish(engine, await engine.request())
    await asyncio.gather(*readers)


async def test_a_lone_request_does_not_pass_the_queue(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await service.engine()
    queued: list[str] = []
    add = RequestQueue.add

    def noting(queue: RequestQueue[LiveRequest], request: LiveRequest) -> None:
        queued.append(request.request_id)
        add(queue, request)

    monkeypatch.setattr(RequestQueue, "add", noting)
    readers = [ask(service, "lone")]
    assert (await engine.request()).request_id == "lone"
    assert queued == []
    readers += [ask(service, "first"), ask(service, "second")]
    assert [(await engine.request()).request_id for _ in range(2)] == ["first", "second"]
    assert queued == ["first", "second"]
    await leave(readers)
