import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from functools import partial

import pytest

from kvasir.client.async_llm import Delta
from kvasir.client.moves import resumes
from kvasir.client.moves.migration import FURTHER_TOKENS, MAX_LOSSES
from kvasir.client.request_errors import EngineUnavailable, RequestFailed
from kvasir.link.engine_end.engine_link import FrontendLost
from kvasir.link.protocol import (
    FEATURE_PRIORITY,
    AddRequest,
    FinishReason,
    Ready,
    RefusalKind,
    Refused,
    RequestOutput,
)
from runtime.client.scripted_engine import ScriptedEngine
from runtime.client.service import HOLDS_NONE, MODEL, Service
from runtime.link.bare_peers import BareEngine
from runtime.link_messages import output_of, prompt_of


def _has_tokens(service: Service, count: int) -> bool:
    return len(service.observer.tokens) == count


def _tokens_in_all(service: Service, count: int) -> bool:
    return sum(service.observer.tokens) == count


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def first_of(service: Service, engines: list[ScriptedEngine]) -> ScriptedEngine:
    """Wait until one of these engines has a request of this frontend, and return it."""

    def busy() -> list[ScriptedEngine]:
        return [engine for engine in engines if service.llm._journal.in_flight(engine.identity.incarnation)]

    await service.until(lambda: bool(busy()))
    return busy()[0]


async def test_a_request_of_a_dead_engine_continues_on_another(service: Service) -> None:
    engines = [await service.engine(0), await service.engine(1)]
    fox = service.tokenizer.encode(" fox jumps", False)
    reader = service.ask("r", max_tokens=40, min_tokens=3, presence_penalty=1.5, seed=7)
    lost = await first_of(service, engines)
    first = await lost.request()
    lost.answer(first, 0, fox[:2])
    lost.die("out of memory")
    (other,) = (engine for engine in engines if engine is not lost)
    request = await other.request()
    assert (request.request_id, request.attempt) == ("r", 2)
    assert prompt_of(request) == prompt_of(first)
    assert output_of(request) == fox[:2]
    assert request.params == first.params
    assert request.age > first.age == 0
    other.answer(request, 2, [*fox[2:], 1], FinishReason.STOP)
    deltas = await reader
    assert "".join(delta.text for delta in deltas) == " fox jumps"
    assert tokens(deltas) == [*fox, 1]
    assert len(service.observer.started) == len(service.observer.first_tokens) == 1
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.STOP]
    assert service.llm.live_requests == 0


async def test_a_request_without_a_token_continues_too_and_others_stay(service: Service) -> None:
    engines = [await service.engine(0), await service.engine(1)]
    readers = {name: service.ask(name) for name in ("a", "b")}
    requests = [await engine.request() for engine in engines]
    engines[0].die("out of memory")
    moved = await engines[1].request()
    assert (moved.request_id, moved.attempt, output_of(moved)) == (requests[0].request_id, 2, [])
    for request in (requests[1], moved):
        engines[1].answer(request, 0, [5], FinishReason.STOP)
    for reader in readers.values():
        assert tokens(await reader) == [5]


async def test_a_gap_in_positions_moves_the_requests_of_the_engine(service: Service) -> None:
    engine = await service.engine(0)
    reader = service.ask("r")
    request = await engine.request()
    other = await service.engine(1)
    engine.answer(request, 0, [5])
    engine.answer(request, 2, [6])
    moved = await other.request()
    assert output_of(moved) == [5]
    other.answer(moved, 1, [7], FinishReason.STOP)
    assert tokens(await reader) == [5, 7]


async def test_requests_move_in_the_order_in_which_they_came(service: Service) -> None:
    engine = await service.engine(0)
    readers = [service.ask(str(n)) for n in range(5)]
    for _ in readers:
        await engine.request()
    journal = service.llm._journal
    journal.assign(journal.get("1"), engine.identity.incarnation)  # type: ignore[arg-type] # now the last one
    other = await service.engine(1)
    engine.die("out of memory")
    moved = [await other.request() for _ in readers]
    assert [request.request_id for request in moved] == list("01234")
    for request in moved:
        other.answer(request, 0, [1], FinishReason.STOP)
    await asyncio.gather(*readers)


async def test_request_that_lost_three_engines_fails_with_their_names(service: Service) -> None:
    engines = [await service.engine(0)]
    reader = service.ask("r")
    for count in range(3):
        request = await engines[-1].request()
        assert (request.attempt, len(output_of(request))) == (count + 1, count)
        engines[-1].answer(request, count, [5])
        await service.until(partial(_has_tokens, service, count + 1))
        engines.append(await service.engine(count + 1))
        engines[-2].die("out of memory")
    with pytest.raises(RequestFailed, match=r"3 engines .* lost with this request, .* after 3 tokens"):
        await reader
    assert engines[-1].messages() == []
    assert service.llm.live_requests == 0


async def lose_engines(service: Service, count: int, new_tokens: int) -> ScriptedEngine:
    """Lose so many engines in turn, each after this many tokens of the only request. Return the next one."""
    engine = await service.engine(0)
    for number in range(count):
        request = await engine.request()
        assert (request.attempt, len(output_of(request))) == (number + 1, number * new_tokens)
        engine.answer(request, number * new_tokens, [5] * new_tokens)
        await service.until(partial(_tokens_in_all, service, (number + 1) * new_tokens))
        engine, lost = await service.engine(number + 1), engine
        lost.die("killed from outside")
    return engine


async def test_request_that_gets_further_each_time_is_not_the_cause(service: Service) -> None:
    reader = service.ask("r", max_tokens=60)
    engine = await lose_engines(service, 5, FURTHER_TOKENS)
    request = await engine.request()
    engine.answer(request, 5 * FURTHER_TOKENS, [1], FinishReason.STOP)
    assert len(tokens(await reader)) == 5 * FURTHER_TOKENS + 1


async def test_request_that_gets_further_does_not_end_engines_for_ever(service: Service) -> None:
    reader = service.ask("r", max_tokens=60)
    last = await lose_engines(service, 3 * MAX_LOSSES, FURTHER_TOKENS)
    with pytest.raises(RequestFailed, match=r"12 engines .* lost with this request"):
        await reader
    assert last.messages() == []


async def test_a_client_that_left_is_not_moved(service: Service) -> None:
    engine, other = await service.engine(0), await service.engine(1)
    engines = [engine, other]
    reader = service.ask("r")
    busy = await first_of(service, engines)
    await busy.request()
    reader.cancel()
    await busy.abort()
    busy.die("out of memory")
    await service.until(lambda: not service.usable(busy))
    assert [each.messages() for each in engines if each is not busy] == [[]]
    assert service.llm.live_requests == 0


@HOLDS_NONE
async def test_without_another_engine_the_error_is_in_the_stream(service: Service) -> None:
    engine = await service.engine()
    deltas = service.llm.generate("r", service.prompted())
    first = asyncio.create_task(anext(deltas))
    engine.answer(await engine.request(), 0, service.tokenizer.encode(" fox", False))
    assert (await first).text
    engine.die("out of memory")
    with pytest.raises(RequestFailed, match=r"engine-0-\S+ was lost with this request, and no engine is ready"):
        await anext(deltas)
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.ERROR]
    assert service.llm.live_requests == 0


def give_back(engine: ScriptedEngine, request: AddRequest, position: int, refusal: RefusalKind) -> None:
    engine.answer(request, position, [], FinishReason.ERROR, error="the drain is over", refusal=refusal)


@pytest.mark.parametrize("refusal", [RefusalKind.OVERLOADED, RefusalKind.UNAVAILABLE])
async def test_a_request_with_tokens_that_is_given_back_continues(service: Service, refusal: RefusalKind) -> None:
    engine = await service.engine(0)
    reader = service.ask("r")
    request = await engine.request()
    other = await service.engine(1)
    engine.answer(request, 0, [5])
    give_back(engine, request, 1, refusal)
    moved = await other.request()
    assert output_of(moved) == [5]
    other.answer(moved, 1, [6], FinishReason.STOP)
    assert tokens(await reader) == [5, 6]


async def test_request_that_waited_in_a_draining_engine_keeps_its_age(service: Service) -> None:
    engine = await service.engine(0)
    reader = service.ask("r")
    request = await engine.request()
    other = await service.engine(1)
    give_back(engine, request, 0, RefusalKind.UNAVAILABLE)
    moved = await other.request()
    assert moved.age > 0
    other.answer(moved, 0, [5], FinishReason.STOP)
    await reader
    assert service.observer.moved == [("returned", True)]


async def test_a_fresh_request_that_a_full_engine_refuses_stays_fresh(service: Service) -> None:
    """The refused request must not overtake those that wait in the next engine."""
    engine = await service.engine(0)
    reader = service.ask("r")
    request = await engine.request()
    other = await service.engine(1)
    give_back(engine, request, 0, RefusalKind.OVERLOADED)
    again = await other.request()
    assert (again.attempt, again.age) == (2, 0)
    other.answer(again, 0, [5], FinishReason.STOP)
    await reader
    assert service.observer.moved == []


async def test_a_moved_request_that_all_refuse_is_sent_again(service: Service) -> None:
    engine = await service.engine(0)
    reader = service.ask("r")
    request = await engine.request()
    engine.answer(request, 0, [5])
    other = await service.engine(1)
    engine.die("out of memory")
    for attempt in (2, 3, 4):
        moved = await other.request()
        assert (moved.attempt, output_of(moved)) == (attempt, [5])
        give_back(other, moved, 1, RefusalKind.OVERLOADED)
        other.step([])
    assert service.observer.moved == []
    other.answer(await other.request(), 1, [6], FinishReason.STOP)
    assert tokens(await reader) == [5, 6]
    assert len(service.observer.started) == len(service.observer.finished) == 1
    assert [reason for reason, _ in service.observer.moved] == ["lost"]


async def test_late_outputs_of_the_lost_engine_are_dropped(service: Service) -> None:
    """The frontend takes a frozen engine for lost. The engine then sends tokens that it had computed, and joins."""
    frozen = await service.engine(0)
    reader = service.ask("r")
    request = await frozen.request()
    frozen.answer(request, 0, [5])
    await service.until(lambda: service.observer.tokens == [1])
    other = await service.engine(1)
    service.llm._link.lose(frozen.identity.incarnation, "it was silent")
    frozen.answer(request, 1, [6])
    moved = await other.request()
    await service.until(lambda: service.usable(frozen))
    assert isinstance(frozen.link.inbox.get_nowait(), FrontendLost)  # so it drops its requests
    frozen.answer(request, 1, [6])
    other.answer(moved, 1, [7], FinishReason.STOP)
    assert tokens(await reader) == [5, 7]


def ready(numerics: str, max_model_len: int = 128) -> Ready:
    return Ready(16, 64, max_model_len, 8, numerics=numerics)


async def connected(service: Service, rank: int, capacity: Ready) -> ScriptedEngine:
    engine = service.connect(ready=capacity, rank=rank)
    await service.until(lambda: service.usable(engine))
    return engine


async def test_request_with_tokens_goes_to_its_numerics_class(service: Service) -> None:
    first = await connected(service, 0, ready("float32"))
    reader = service.ask("r")
    first.answer(await first.request(), 0, [5])
    await service.until(lambda: service.observer.tokens == [1])
    others = [await connected(service, rank, ready("bfloat16")) for rank in (1, 2)]
    same = await connected(service, 3, ready("float32"))
    first.die("out of memory")
    same.answer(await same.request(), 1, [6])
    await service.until(lambda: service.observer.tokens == [1, 1])
    same.die("out of memory")
    other = await first_of(service, others)
    other.answer(await other.request(), 2, [7], FinishReason.STOP)
    assert tokens(await reader) == [5, 6, 7]
    assert service.observer.moved == [("lost", True), ("lost", False)]
    assert len(service.observer.stalls) == 2


async def test_refusal_does_not_change_numerics_class_of_the_tokens(service: Service) -> None:
    first = await connected(service, 0, ready("float32"))
    reader = service.ask("r")
    first.answer(await first.request(), 0, [5])
    other = await connected(service, 1, ready("bfloat16"))
    first.die("out of memory")
    refused = await other.request()
    same = await connected(service, 2, ready("float32"))
    give_back(other, refused, 1, RefusalKind.OVERLOADED)
    give_back(same, await same.request(), 1, RefusalKind.OVERLOADED)
    same.step([])
    same.answer(await same.request(), 1, [6], FinishReason.STOP)
    assert tokens(await reader) == [5, 6]
    assert service.observer.moved == [("lost", True)]


async def test_a_request_without_tokens_moves_exactly_to_any_engine(service: Service) -> None:
    first = await connected(service, 0, ready("float32"))
    reader = service.ask("r")
    await first.request()
    other = await connected(service, 1, ready(""))
    first.die("out of memory")
    other.answer(await other.request(), 0, [7], FinishReason.STOP)
    await reader
    assert service.observer.moved == [("lost", True)]


async def test_a_request_moves_to_an_engine_that_can_hold_its_answer(service: Service) -> None:
    first = await connected(service, 0, ready("a"))
    reader = service.ask("r", max_tokens=100)
    first.answer(await first.request(), 0, [5])
    small = await connected(service, 1, ready("a", max_model_len=64))
    large = await connected(service, 2, ready("b"))
    first.die("out of memory")
    large.answer(await large.request(), 1, [7], FinishReason.STOP)
    await reader
    assert small.messages() == []


async def test_urgent_request_moves_to_an_engine_that_takes_priorities(service: Service) -> None:
    """An engine that serves by arrival rejects it for good."""
    by_priority = Ready(16, 64, 128, 8, features=(FEATURE_PRIORITY,))
    first = await connected(service, 0, by_priority)
    reader = asyncio.create_task(anext(urgent(service, "r", 1)))
    await first.request()
    by_arrival = await service.engine(1)
    same = await connected(service, 2, by_priority)
    pinned = service.llm.input.prepare([5], data_parallel_rank=2)
    other = asyncio.create_task(anext(service.llm.generate("pinned", pinned)))
    requests = [await same.request()]  # so that the other engine has fewer
    first.die("out of memory")
    requests.append(await same.request())
    for request in requests:
        same.answer(request, 0, [5], FinishReason.STOP)
    await asyncio.gather(reader, other)
    assert by_arrival.messages() == []


@HOLDS_NONE
async def test_a_request_never_moves_to_another_model(service: Service) -> None:
    first = await service.engine(0)
    reader = service.ask("r")
    first.answer(await first.request(), 0, [5])
    with closing(BareEngine(service.llm.link_address, "another")) as another:
        another.introduce(service="", fingerprint="another model", tokenizer_hash=MODEL.tokenizer_hash)
        await asyncio.to_thread(another.expect, Refused)
        first.die("out of memory")
        with pytest.raises(RequestFailed, match="none is connected"):
            await reader


def weighing(weights: str) -> Ready:
    return Ready(16, 64, 128, 8, weights=weights)


async def test_an_answer_never_continues_with_other_weights(service: Service) -> None:
    """The files may be replaced under a running service: config.json is the same."""
    first = await connected(service, 0, weighing("old"))
    reader = service.ask("r")
    first.answer(await first.request(), 0, [5])
    await service.until(lambda: _has_tokens(service, 1))
    other = await connected(service, 1, weighing("new"))
    first.die("out of memory")
    with pytest.raises(EngineUnavailable, match="weights of the model were replaced"):
        await reader
    assert other.messages() == []


@pytest.mark.parametrize("weights", ["old", ""], ids=["the same", "of an earlier version"])
async def test_an_answer_continues_where_its_weights_are(service: Service, weights: str) -> None:
    first = await connected(service, 0, weighing("old"))
    reader = service.ask("r")
    request = await first.request()
    first.answer(request, 0, [5])
    await service.until(lambda: _has_tokens(service, 1))
    other, same = await connected(service, 1, weighing("new")), await connected(service, 2, weighing(weights))
    first.die("out of memory")
    same.answer(await same.request(), 1, [6], FinishReason.STOP)
    assert tokens(await reader) == [5, 6]
    assert other.messages() == []


async def test_a_request_without_tokens_moves_to_any_weights(service: Service) -> None:
    first = await connected(service, 0, weighing("old"))
    reader = service.ask("r")
    await first.request()
    other = await connected(service, 1, weighing("new"))
    first.die("out of memory")
    third = await connected(service, 2, weighing("old"))
    other.answer(await other.request(), 0, [5])
    await service.until(lambda: _has_tokens(service, 1))
    other.die("out of memory")
    with pytest.raises(EngineUnavailable, match="weights of the model were replaced"):
        await reader
    assert third.messages() == []


@HOLDS_NONE
async def test_an_engine_resumes_a_bounded_number_of_tokens_at_a_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await service.engine(0)
    readers = {str(n): service.ask(str(n)) for n in range(5)}
    requests = [await engine.request() for _ in readers]
    length = len(prompt_of(requests[0]))
    monkeypatch.setattr(resumes, "MAX_RESUMING_TOKENS", 2 * length)
    other = await service.engine(1)
    engine.die("out of memory")
    moved = [await other.request(), await other.request()]
    fresh = service.ask("fresh")  # is not one of them
    assert (await other.request()).request_id == "fresh"
    other.answer(moved[0], 0, [5])
    moved.append(await other.request())
    readers["1"].cancel()
    assert await other.abort() == ["1"]
    moved.append(await other.request())
    other.answer(moved[2], 0, [5], FinishReason.STOP)
    moved.append(await other.request())
    assert [request.request_id for request in moved] == list("01234")
    assert other.messages() == []
    other.die("out of memory")
    with pytest.raises(RequestFailed):
        await fresh
    assert service.llm._journal.resuming_tokens(other.identity.incarnation) == 0


async def test_a_request_larger_than_the_bound_is_resumed_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumes, "MAX_RESUMING_TOKENS", 1)
    engine = await service.engine(0)
    readers = [service.ask(str(n)) for n in range(3)]
    for _ in readers:
        await engine.request()
    others = [await service.engine(1), await service.engine(2)]
    engine.die("out of memory")
    first, second = [await other.request() for other in others]
    others[0].answer(first, 0, [5], FinishReason.STOP)
    others[0].answer(await others[0].request(), 0, [5], FinishReason.STOP)
    others[1].answer(second, 0, [5], FinishReason.STOP)
    for reader in readers:
        assert tokens(await reader) == [5]


async def test_a_small_request_does_not_overtake_a_large_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await service.engine(0)
    texts = {"first": "The quick", "large": "The quick brown fox " * 6, "small": "The quick"}
    readers = [service.ask(name, text=text, max_tokens=5) for name, text in texts.items()]
    requests = [await engine.request() for _ in readers]
    monkeypatch.setattr(resumes, "MAX_RESUMING_TOKENS", 2 * len(prompt_of(requests[0])))
    other = await service.engine(1)
    engine.die("out of memory")
    for name in texts:
        moved = await other.request()
        assert moved.request_id == name
        other.answer(moved, 0, [5], FinishReason.STOP)
    await asyncio.gather(*readers)


async def test_closing_fails_a_request_that_waits_for_another_try(service: Service) -> None:
    engine = await service.engine(0)
    reader = service.ask("r")
    request = await engine.request()
    engine.answer(request, 0, [5])
    give_back(engine, request, 1, RefusalKind.OVERLOADED)
    await service.until(lambda: not service.llm._journal.running())
    await service.llm.close()
    with pytest.raises(RequestFailed, match="shutting down"):
        await reader
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.ERROR]


def give_all_back(engine: ScriptedEngine, requests: list[AddRequest]) -> None:
    """End all of these requests in one step, as at the end of a drain."""
    engine.step(
        [
            RequestOutput(
                request.request_id,
                request.attempt,
                1,
                [],
                FinishReason.ERROR,
                error="the drain is over",
                refusal=RefusalKind.UNAVAILABLE,
            )
            for request in requests
        ]
    )


async def test_requests_that_a_drain_gives_back_resume_a_few_at_a_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await service.engine(0)
    readers = [service.ask(str(n)) for n in range(5)]
    requests = [await engine.request() for _ in readers]
    monkeypatch.setattr(resumes, "MAX_RESUMING_TOKENS", 2 * (len(prompt_of(requests[0])) + 1))
    for request in requests:
        engine.answer(request, 0, [5])
    other = await service.engine(1)
    give_all_back(engine, requests)
    moved = [await other.request(), await other.request()]
    await service.until(lambda: len(service.llm._journal.running()) == 2)
    assert other.messages() == []
    for count in range(5):
        other.answer(moved[count], 1, [6], FinishReason.STOP)
        if len(moved) < 5:
            moved.append(await other.request())
    assert [request.request_id for request in moved] == list("01234")
    for reader in readers:
        assert tokens(await reader) == [5, 6]


async def test_a_request_that_waits_is_sent_to_an_engine_that_was_full(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine with room, for which the request waits, is lost before its turn."""
    monkeypatch.setattr(resumes, "MAX_RESUMING_TOKENS", 1)
    engine = await service.engine(0)
    readers = [service.ask(str(n)) for n in range(3)]
    for _ in readers:
        await engine.request()
    others = [await service.engine(1), await service.engine(2)]
    engine.die("out of memory")
    full, lost = others
    refused = await full.request()
    await lost.request()
    give_back(full, refused, 0, RefusalKind.OVERLOADED)
    await service.until(lambda: not service.llm._journal.in_flight(full.identity.incarnation))
    lost.die("out of memory")
    for _ in readers:
        full.answer(await full.request(), 0, [5], FinishReason.STOP)
    for reader in readers:
        assert tokens(await reader) == [5]


def urgent(service: Service, name: str, priority: int) -> AsyncGenerator[Delta]:
    return service.llm.generate(name, service.llm.input.prepare([5], priority=priority))


async def test_an_urgent_request_moves_first(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumes, "MAX_RESUMING_TOKENS", 1)
    by_priority = Ready(16, 64, 128, 8, features=(FEATURE_PRIORITY,))
    engine = await connected(service, 0, by_priority)
    readers = [
        asyncio.create_task(anext(urgent(service, str(n), priority))) for n, priority in enumerate((2, 2, 0))
    ]
    for _ in readers:
        await engine.request()
    other = await connected(service, 1, by_priority)
    engine.die("out of memory")
    for name in ("2", "0", "1"):
        moved = await other.request()
        assert moved.request_id == name
        other.answer(moved, 0, [5], FinishReason.STOP)
    await asyncio.gather(*readers)
