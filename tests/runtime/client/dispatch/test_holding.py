import asyncio

import pytest

from kvasir.client.dispatch.holding import Holding
from kvasir.client.live_request import LiveRequest
from kvasir.link.protocol import Abort, FinishReason, RefusalKind
from kvasir.request.tokens import from_wire
from runtime.client.held import ROWS, ask, finish, finish_all, held, leave, turns
from runtime.client.scripted_engine import PATIENCE, READY
from runtime.client.service import Service


async def test_held_requests_are_answered_in_order_by_an_engine(service: Service) -> None:
    names = [f"r{n}" for n in range(5)]
    readers = await held(service, *names)
    engine = service.connect()
    await service.until(lambda: engine.identity.incarnation in service.llm.engines)
    assert service.llm.held_requests == 5  # an engine that is starting takes none
    engine.link.announce_ready(READY)
    assert await finish_all(engine, 5) == names
    for reader in readers:
        assert [delta.token_ids for delta in await reader] == [[5]]
    assert service.llm.held_requests == service.llm.live_requests == 0
    assert len(service.observer.holds) == len(service.observer.started) == len(service.observer.finished) == 5


async def test_an_engine_gets_no_more_than_it_can_soon_compute(service: Service) -> None:
    readers = await held(service, *(f"r{n}" for n in range(3 * ROWS)))
    first = await service.engine(0)
    sent = [await first.request() for _ in range(ROWS + 2)]
    assert service.llm.waiting_requests == 2 * ROWS - 2
    late = ask(service, "late")  # waits behind the held ones
    await turns()
    assert service.llm.waiting_requests == 2 * ROWS - 1
    await finish(first, sent.pop())
    sent.append(await first.request())  # the room of the one that has ended
    second = await service.engine(1)
    others = [await second.request() for _ in range(ROWS + 2)]
    assert [request.request_id for request in sent[-1:] + others] == [
        f"r{n}" for n in range(ROWS + 2, 2 * ROWS + 5)
    ]
    assert service.llm.waiting_requests == ROWS - 4
    await leave([*readers, late])
    assert service.llm.waiting_requests == service.llm.live_requests == 0


async def test_the_room_of_clients_that_left_is_used_at_once(service: Service) -> None:
    readers = await held(service, *(f"r{n}" for n in range(ROWS + 4)))
    engine = await service.engine()
    assert [(await engine.request()).request_id for _ in range(ROWS + 2)][-1] == f"r{ROWS + 1}"
    await leave(readers[:1])
    assert isinstance(await engine.message(), Abort)
    assert (await engine.request()).request_id == f"r{ROWS + 2}"
    await leave(readers)


async def test_a_defect_in_the_queue_fails_only_its_request(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Holding.refusal

    def broken(holding: Holding, request: LiveRequest) -> str | None:
        if request.request_id == "broken":
            raise ValueError("a defect")
        return refusal(holding, request)

    monkeypatch.setattr(Holding, "refusal", broken)
    readers = [ask(service, name) for name in ("broken", "next")]
    with pytest.raises(ValueError, match="a defect"):
        await asyncio.wait_for(readers[0], PATIENCE)
    assert service.llm.held_requests == 1
    await leave(readers[1:])


async def test_a_client_that_leaves_frees_its_place(service: Service) -> None:
    readers = await held(service, "a", "b", "c")
    await leave(readers[1:2])
    assert service.llm.held_requests == 2
    engine = await service.engine()
    assert await finish_all(engine, 2) == ["a", "c"]
    await asyncio.gather(readers[0], readers[2])
    assert engine.messages() == []


async def test_a_pinned_request_waits_for_its_rank_and_delays_no_other(service: Service) -> None:
    (pinned,) = await held(service, "pinned", rank=1)
    (free,) = await held(service, "free")
    first = await service.engine(0)
    assert await finish_all(first, 1) == ["free"]
    await free
    later = ask(service, "later")
    assert await finish_all(first, 1) == ["later"]
    await later
    assert service.llm.held_requests == 1
    assert await finish_all(await service.engine(1), 1) == ["pinned"]
    await pinned


async def test_held_requests_of_two_lanes_keep_their_order(service: Service) -> None:
    readers = await held(service, "a") + await held(service, "b", rank=0) + await held(service, "c")
    assert await finish_all(await service.engine(0), 3) == ["a", "b", "c"]
    await asyncio.gather(*readers)


async def test_request_of_a_stopping_engine_waits_before_fresh_ones(service: Service) -> None:
    first = await service.engine()
    moved = ask(service, "moved")
    refused = await first.request()
    first.link.drain()
    await service.until(lambda: not service.usable(first))
    fresh = await held(service, "fresh")
    first.answer(refused, 0, [], FinishReason.ERROR, error="it stops", refusal=RefusalKind.UNAVAILABLE)
    await service.until(lambda: service.llm.held_requests == 2)
    second = await service.engine()
    requests = [await second.request() for _ in range(2)]
    assert [(request.request_id, request.attempt) for request in requests] == [("moved", 2), ("fresh", 1)]
    for request in requests:
        await finish(second, request)
    await asyncio.gather(moved, *fresh)
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.STOP] * 2


async def test_held_request_that_was_started_ends_once_in_the_metrics(service: Service) -> None:
    engine = await service.engine()
    moved = ask(service, "moved")
    refused = await engine.request()
    engine.answer(refused, 0, [], FinishReason.ERROR, error="it stops", refusal=RefusalKind.UNAVAILABLE)
    await service.until(lambda: service.llm.held_requests == 1)
    await leave([moved])
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.ABORT]
    assert len(service.observer.started) == 1


async def test_a_request_with_tokens_continues_where_it_was(service: Service) -> None:
    first = await service.engine()
    resumed = ask(service, "resumed")
    request = await first.request()
    first.answer(request, 0, [7])
    await service.until(lambda: bool(service.observer.tokens))
    first.link.drain()
    await service.until(lambda: not service.usable(first))
    fresh = await held(service, "fresh")
    live = service.llm._journal.get("resumed")
    assert live is not None
    service.llm._journal.requeue(live)
    service.llm._dispatcher.dispatch(live)
    await turns()
    second = await service.engine()
    again = await second.request()
    assert (again.request_id, again.attempt, from_wire(again.output_tokens).tolist()) == ("resumed", 2, [7])
    await finish(second, again)
    assert [token for delta in await resumed for token in delta.token_ids] == [7, 5]
    assert await finish_all(second, 1) == ["fresh"]
    await asyncio.gather(*fresh)
