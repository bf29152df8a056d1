import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvasir.client.async_llm import Delta
from kvasir.client.dispatch.router import Router
from kvasir.client.moves import hand_overs, resumes
from kvasir.link.protocol import AddRequest, FinishReason, Goodbye, Ready, RequestOutput
from runtime.client.scripted_engine import ScriptedEngine
from runtime.client.service import Service
from runtime.link_messages import output_of, prompt_of

LONG, NOW = 1e6, 1e-6
"""Drain timeouts: all requests end within the first one, and none that has begun within the second."""
NUMERICS = "float32"


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def connected(service: Service, rank: int, numerics: str = NUMERICS) -> ScriptedEngine:
    engine = service.connect(ready=Ready(16, 64, 128, 8, numerics=numerics), rank=rank)
    await service.until(lambda: service.usable(engine))
    return engine


class Served:
    """Requests of an engine, each of which has got `count` tokens."""

    def __init__(self, service: Service, engine: ScriptedEngine) -> None:
        self.service, self.engine = service, engine
        self.requests: dict[str, AddRequest] = {}
        self.readers: dict[str, asyncio.Task[list[Delta]]] = {}

    async def add(self, *names: str, count: int, **params: Any) -> None:
        for name in names:
            self.readers[name] = self.service.ask(name, **params)
            self.requests[name] = await self.engine.request()
        if count:
            self.begin(*names, count=count)
            for name in names:
                await self.service.until(lambda name=name: self.count(name) == count)  # type: ignore[misc]

    def begin(self, *names: str, count: int) -> None:
        tokens = [5] * count
        self.engine.step(
            [RequestOutput(name, self.requests[name].attempt, 0, tokens, num_cached_tokens=0) for name in names]
        )

    def count(self, name: str) -> int:
        request = self.service.llm._journal.get(name)
        assert request is not None
        return len(request.output_token_ids)

    async def drain(self, seconds: float) -> None:
        self.engine.link.drain(seconds)
        await self.service.until(lambda: not self.service.usable(self.engine))


@pytest.fixture
def token_takes_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with three tokens has had 10 s for the two after its first output."""
    begun = time.perf_counter() - 10.0
    monkeypatch.setattr(Router, "begun_at", lambda router, request: begun if request.output_token_ids else None)


@pytest.mark.usefixtures("token_takes_five_seconds")
async def test_what_ends_too_late_moves_and_the_rest_stays(service: Service) -> None:
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("soon", count=3, max_tokens=10)
    await served.add("late", count=3, max_tokens=20)
    other = await connected(service, 1)
    await served.drain(60.0)  # enough for twelve tokens
    moved = await other.request()
    assert (moved.request_id, moved.attempt, output_of(moved)) == ("late", 2, [5] * 3)
    assert prompt_of(moved) == prompt_of(served.requests["late"])
    assert moved.age > 0
    assert await engine.abort() == ["late"]
    engine.answer(served.requests["late"], 3, [9])  # it was on its way
    other.answer(moved, 3, [6], FinishReason.STOP)
    assert tokens(await served.readers["late"]) == [5, 5, 5, 6]
    engine.answer(served.requests["soon"], 3, [7], FinishReason.STOP)
    assert tokens(await served.readers["soon"]) == [5, 5, 5, 7]
    assert service.observer.moved == [("returned", True)]
    assert other.messages() == engine.messages() == []


async def test_queued_requests_move_though_they_would_end_in_time(service: Service) -> None:
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("running", count=0)
    await served.add("prefilling", "queued", count=0)
    engine.step([RequestOutput("running", 1, 0, [5], num_cached_tokens=0)], waiting=1)
    await service.until(lambda: served.count("running") == 1)
    other = await connected(service, 1)
    await served.drain(LONG)
    moved = await other.request()
    assert (moved.request_id, output_of(moved)) == ("queued", [])
    assert await engine.abort() == ["queued"]
    other.answer(moved, 0, [6], FinishReason.STOP)
    for name, position in (("running", 1), ("prefilling", 0)):
        engine.answer(served.requests[name], position, [7], FinishReason.STOP)
    await asyncio.gather(*served.readers.values())
    assert other.messages() == engine.messages() == []


async def test_requests_stay_until_another_engine_is_ready(service: Service) -> None:
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("r", count=2)
    await served.drain(NOW)
    engine.answer(served.requests["r"], 2, [6])
    await service.until(lambda: served.count("r") == 3)
    other = await connected(service, 1)
    moved = await other.request()
    assert output_of(moved) == [5, 5, 6]
    assert await engine.abort() == ["r"]
    other.answer(moved, 3, [7], FinishReason.STOP)
    assert tokens(await served.readers["r"]) == [5, 5, 6, 7]


async def test_requests_go_on_until_the_other_engine_has_room(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumes, "MAX_RESUMING_TOKENS", 1)
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("a", "b", count=2)
    other = await connected(service, 1)
    await served.drain(NOW)
    first = await other.request()
    assert await engine.abort() == [first.request_id] == ["a"]
    engine.answer(served.requests["b"], 2, [6])
    await service.until(lambda: served.count("b") == 3)
    assert other.messages() == engine.messages() == []
    other.answer(first, 2, [7])
    second = await other.request()
    assert (second.request_id, output_of(second)) == ("b", [5, 5, 6])
    for request, position in ((first, 3), (second, 3)):
        other.answer(request, position, [8], FinishReason.STOP)
    assert tokens(await served.readers["a"]) == [5, 5, 7, 8]
    assert tokens(await served.readers["b"]) == [5, 5, 6, 8]


async def test_a_request_that_ends_before_its_turn_is_not_moved(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumes, "MAX_RESUMING_TOKENS", 1)
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("a", "b", count=2)
    other = await connected(service, 1)
    await served.drain(NOW)
    first = await other.request()
    engine.answer(served.requests["b"], 2, [6], FinishReason.STOP)
    await served.readers["b"]
    other.answer(first, 2, [7], FinishReason.STOP)
    await served.readers["a"]
    assert other.messages() == []
    assert service.llm.live_requests == 0


async def test_request_with_tokens_waits_for_its_numerics_class(service: Service) -> None:
    """The engine gives it back at its drain timeout if there is none."""
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("r", count=2)
    inexact = await connected(service, 1, numerics="bfloat16")
    await served.drain(NOW)
    exact = await connected(service, 2)
    exact.answer(await exact.request(), 2, [6], FinishReason.STOP)
    await served.readers["r"]
    assert inexact.messages() == []
    assert service.observer.moved == [("returned", True)]


async def test_what_moved_to_an_engine_that_drains_too_moves_on(service: Service) -> None:
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("r", count=2)
    second = await connected(service, 1)
    await served.drain(NOW)
    moved = await second.request()
    second.step([RequestOutput("r", moved.attempt, 2, [6, 6], num_cached_tokens=0)])
    await service.until(lambda: served.count("r") == 4)
    third = await connected(service, 2)
    second.link.drain(NOW)
    again = await third.request()
    assert (again.attempt, output_of(again)) == (3, [5, 5, 6, 6])
    third.answer(again, 4, [7], FinishReason.STOP)
    assert tokens(await served.readers["r"]) == [5, 5, 6, 6, 7]


async def test_a_slower_engine_hands_over_what_it_would_have_finished(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_overs, "PLAN_SECONDS", 0.01)
    planned, speeds = asyncio.Event(), [0.001]

    def seconds(*_: object) -> float:
        planned.set()
        return speeds[-1]

    monkeypatch.setattr(hand_overs.HandOvers, "_seconds_per_token", seconds)
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("r", count=2, max_tokens=50)
    other = await connected(service, 1)
    await served.drain(3600.0)
    await asyncio.wait_for(planned.wait(), 60)
    assert other.messages() == []
    speeds.append(1000.0)
    other.answer(await other.request(), 2, [6], FinishReason.STOP)
    await served.readers["r"]


@pytest.mark.parametrize("end", ["goodbye", "loss"])
async def test_an_engine_that_has_ended_is_forgotten(service: Service, end: str) -> None:
    engine = await connected(service, 0)
    await Served(service, engine).drain(LONG)
    drains: Callable[[], object] = lambda: service.llm._hand_overs._timer  # noqa: E731
    assert drains() is not None
    if end == "loss":
        engine.die("out of memory")
    else:
        engine.link.close(Goodbye())
    await service.until(lambda: not service.llm.engines)
    assert drains() is None
