"""Requests that may not move do not hold up others, and moves stay exact; what a review found."""

import asyncio

import pytest

from kvasir.client.live_request import Delta
from kvasir.client.request_errors import RequestFailed
from kvasir.link.protocol import FinishReason, Ready, RefusalKind
from kvasir_contract.endpoints import GATE_SECONDS
from runtime.client.held import ask, leave, with_server
from runtime.client.moves.test_hand_overs import NOW, Served, connected
from runtime.client.scripted_engine import ScriptedEngine
from runtime.client.service import Service


async def test_request_pinned_to_a_draining_rank_does_not_keep_others(service: Service) -> None:
    engine = await connected(service, 0)
    served = Served(service, engine)
    prompted = service.llm.input.prepare([5] * 8, data_parallel_rank=0)

    async def read() -> list[Delta]:
        return [delta async for delta in service.llm.generate("pinned", prompted)]

    served.readers["pinned"] = asyncio.create_task(read())
    served.requests["pinned"] = await engine.request()
    served.begin("pinned", count=2)
    await service.until(lambda: served.count("pinned") == 2)
    await served.add("free", count=2)
    other = await connected(service, 1)
    await served.drain(NOW)
    assert (await other.request()).request_id == "free"
    await leave(served.readers.values())


async def test_request_with_a_strike_does_not_keep_others_in_a_drain(service: Service) -> None:
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("suspect", count=2)
    await served.add("free", count=2, text="Other words")
    suspect = service.llm._journal.get("suspect")
    assert suspect is not None
    service.llm._quarantine._add([suspect.digest], alone=False)
    other = await connected(service, 1)
    await served.drain(NOW)
    assert (await other.request()).request_id == "free"
    await leave(served.readers.values())


async def three_engines(service: Service) -> tuple[ScriptedEngine, Served, ScriptedEngine, ScriptedEngine]:
    """An engine with its request "r", one of the same numerics class, and one of another class."""
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("r", count=2)
    return engine, served, await connected(service, 1), await connected(service, 2, numerics="bfloat16")


def keep_full(patch: pytest.MonkeyPatch, service: Service, engine: ScriptedEngine) -> None:
    """Have this engine count as full, until the patch ends: its next heartbeat would end a refusal."""
    full = engine.identity.incarnation
    patch.setattr(service.llm._dispatcher._room, "is_full", lambda each: each.incarnation == full)


async def test_a_hand_over_waits_for_an_exact_engine_that_is_full(service: Service) -> None:
    _, served, exact, inexact = await three_engines(service)
    full = service.llm.engines[exact.identity.incarnation]
    service.llm._dispatcher._room.refused(full)
    await served.drain(NOW)
    service.llm._dispatcher._room.forget(full.incarnation)
    service.llm._hand_overs.work()
    assert (await exact.request()).request_id == "r"
    assert inexact.messages() == []
    await leave(served.readers.values())


async def test_moved_request_waits_for_an_exact_engine_that_is_full(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, served, exact, inexact = await three_engines(service)
    dispatcher = service.llm._dispatcher
    with monkeypatch.context() as patch:
        keep_full(patch, service, exact)
        engine.die("out of memory")
        await service.until(lambda: len(dispatcher._queue) == 1)
    dispatcher.release()
    assert (await exact.request()).request_id == "r"
    assert inexact.messages() == []
    await leave(served.readers.values())


async def test_moved_request_that_waits_does_not_delay_fresh_ones(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, served, exact, inexact = await three_engines(service)
    keep_full(monkeypatch, service, exact)
    engine.die("out of memory")
    await service.until(lambda: len(service.llm._dispatcher._queue) == 1)
    fresh = ask(service, "fresh")
    assert (await inexact.request()).request_id == "fresh"
    await leave([fresh, *served.readers.values()])


@with_server(hold_timeout=0.3)
async def test_moved_request_is_not_a_503_after_the_hold_timeout(service: Service) -> None:
    """A 503 would invite the client to send at once what may have ended the engine."""
    engine = await connected(service, 0)
    served = Served(service, engine)
    await served.add("r", count=2)
    engine.die("out of memory")
    with pytest.raises(RequestFailed):
        await served.readers["r"]


@with_server(hold_timeout=GATE_SECONDS)
async def test_gate_does_not_close_for_longer_than_requests_are_held(service: Service) -> None:
    engine = await connected(service, 0)
    service.llm.gate.close()
    assert not service.llm.gate.closed
    reader = ask(service, "r")
    await engine.request()
    await leave([reader])


async def test_an_engine_that_refused_a_request_has_no_blocks_of_it(service: Service) -> None:
    def with_blocks(rank: int) -> Ready:
        return Ready(16, 64, 128, 8, numerics="f", kv_address=f"tcp://rank-{rank}:1")

    first = service.connect(ready=with_blocks(0), rank=0)
    await service.until(lambda: service.usable(first))
    reader = service.ask("r")
    request = await first.request()
    second = service.connect(ready=with_blocks(1), rank=1)
    await service.until(lambda: service.usable(second))
    first.answer(request, 0, [], FinishReason.ERROR, error="full", refusal=RefusalKind.OVERLOADED)
    assert (await second.request()).kv_source == ""
    await leave([reader])
