import re

import pytest

from kvasir.client.request_errors import EngineUnavailable, InvalidRequest
from kvasir.link.protocol import FinishReason, RefusalKind
from runtime.client.held import ROWS, ask, finish, held, leave, soon, turns, with_server
from runtime.client.service import HOLDS_NONE, Service


async def test_a_bad_request_is_refused_before_it_is_held(service: Service) -> None:
    with pytest.raises(InvalidRequest, match="500 tokens"):
        ask(service, "long", prompt=500)
    assert service.llm.held_requests == service.llm.live_requests == 0


@with_server(max_held_requests=3)
async def test_the_number_of_held_requests_is_limited(service: Service) -> None:
    readers = await held(service, "a", "b", "c")
    with pytest.raises(EngineUnavailable, match=r"none is connected\), and 3 requests wait .*--max-held-requests"):
        await soon(ask(service, "d"))
    await leave(readers[:1])
    readers += await held(service, "e")
    await leave(readers)


@with_server(max_held_bytes=4 * 24)
async def test_the_size_of_held_prompts_is_limited(service: Service) -> None:
    readers = await held(service, "a", "b")
    with pytest.raises(EngineUnavailable, match=r"prompts of 64 bytes .*--max-held-bytes"):
        await soon(ask(service, "c", prompt=9))
    readers.append(ask(service, "d", prompt=8))
    await turns()
    assert service.llm.held_requests == 3
    await leave(readers)
    readers = [ask(service, "long", prompt=100)]  # alone, any prompt that the model takes can wait
    await turns()
    assert service.llm.held_requests == 1
    await leave(readers)


@with_server(max_held_requests=ROWS + 3)
async def test_a_request_that_waits_for_room_needs_no_place(service: Service) -> None:
    """The limits are for requests without an engine. With one, a new request must not be worse off than before."""
    readers = await held(service, *(f"r{n}" for n in range(ROWS + 3)))
    engine = await service.engine()
    sent = [await engine.request() for _ in range(ROWS + 2)]
    readers += [ask(service, f"late{n}") for n in range(2 * ROWS)]
    await turns()
    assert (service.llm.held_requests, service.llm.waiting_requests) == (0, 2 * ROWS + 1)
    await finish(engine, sent[0])
    await readers[0]
    await leave(readers)


@with_server(hold_timeout=0.05)
async def test_a_request_waits_no_longer_than_the_hold_timeout(service: Service) -> None:
    readers = [ask(service, "a"), ask(service, "b", rank=3)]
    with pytest.raises(
        EngineUnavailable, match=r"the request has waited 0.05 s for one \(--hold-timeout\)"
    ) as caught:
        await soon(readers[0])
    assert caught.value.retry_after > 0
    with pytest.raises(EngineUnavailable, match="no engine of data-parallel rank 3"):
        await soon(readers[1])
    assert service.llm.held_requests == service.llm.live_requests == 0
    assert not service.observer.started
    assert not service.observer.finished


async def test_a_request_that_waits_for_room_has_no_timeout(service: Service) -> None:
    readers = await held(service, *(f"r{n}" for n in range(ROWS + 3)))
    engine = await service.engine()
    holding = service.llm._dispatcher._holding
    assert (service.llm.held_requests, service.llm.waiting_requests) == (0, 1)
    assert holding._timer is None
    assert len(service.observer.holds) == ROWS + 3
    engine.link.drain()
    await service.until(lambda: service.llm.held_requests == 1)  # from now on, it waits for an engine
    (waiting,) = holding._held.values()
    waiting.deadline = 0.0
    holding._wake()
    with pytest.raises(EngineUnavailable, match="--hold-timeout"):
        await soon(readers[-1])
    await leave(readers)


@HOLDS_NONE
async def test_a_timeout_of_0_holds_nothing(service: Service) -> None:
    with pytest.raises(EngineUnavailable, match=re.escape("no engine is ready (none is connected): try again")):
        await soon(ask(service, "a"))


async def test_closing_fails_held_requests(service: Service) -> None:
    readers = await held(service, "a", "b")
    await service.llm.close()
    for reader in readers:
        with pytest.raises(EngineUnavailable, match="shutting down"):
            await reader


async def test_no_timer_is_left_when_nothing_is_held(service: Service) -> None:
    holding = service.llm._dispatcher._holding
    readers = await held(service, "a", "b")
    timer = holding._timer
    assert timer is not None
    await leave(readers[:1])
    assert holding._timer is timer  # one for all
    await leave(readers)
    assert timer.cancelled()
    assert holding._timer is None


@with_server(hold_timeout=0.05)
async def test_an_engine_that_refused_the_request_is_not_waited_for(service: Service) -> None:
    """Otherwise it would wait for room in an engine that never gets it."""
    engine = await service.engine()
    moved = ask(service, "moved")
    refused = await engine.request()
    engine.answer(refused, 0, [], FinishReason.ERROR, error="it stops", refusal=RefusalKind.UNAVAILABLE)
    with pytest.raises(EngineUnavailable, match="--hold-timeout"):
        await soon(moved)
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.ERROR]
