import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from kvasir.client.live_request import Delta
from kvasir.client.output_processor import SLICE
from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, RequestFailed, TooManyRequests
from kvasir.link.protocol import FinishReason, RefusalKind, RequestProgress
from runtime.client.output_bench import ENGINE, EOS, Bench, Numbers, output


async def test_steps_become_deltas_with_a_finish_reason_in_the_last() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.receive(ENGINE, [output("r", 0, 10)])
    assert await request.collector.take() == Delta("10 ", [10])
    bench.receive(ENGINE, [output("r", 1, 11, 12)])
    bench.receive(ENGINE, [output("r", 3, 13, finish_reason=FinishReason.LENGTH)])
    assert await request.collector.take() == Delta("11 12 13 .", [11, 12, 13], FinishReason.LENGTH)
    assert bench.observer.tokens == [1, 2, 1]
    assert len(bench.observer.first_tokens) == 1
    assert bench.observer.finished == [(FinishReason.LENGTH, 2, 4)]


async def test_the_trace_keeps_what_the_engine_reports() -> None:
    bench = Bench()
    trace = bench.add("r").trace
    first = RequestProgress(prefill_seconds=0.5)
    bench.receive(ENGINE, [output("r", 0, 10, num_cached_tokens=1, queue_seconds=0.25, progress=first)])
    bench.receive(ENGINE, [output("r", 1, 11)])
    bench.receive(ENGINE, [output("r", 2, 12, progress=RequestProgress(3))])
    last = RequestProgress(4, decode_seconds=2.0)
    bench.receive(ENGINE, [output("r", 3, 13, finish_reason=FinishReason.LENGTH, progress=last)])
    assert (trace.cached_tokens, trace.num_preemptions) == (1, 4)
    assert (trace.queue_seconds, trace.prefill_seconds, trace.decode_seconds) == (0.25, 0.5, 2.0)


async def test_resumed_request_keeps_usage_and_times_of_the_first() -> None:
    bench = Bench()
    request = bench.add("r")
    trace = request.trace
    first = RequestProgress(1, prefill_seconds=0.5)
    bench.receive(ENGINE, [output("r", 0, 10, num_cached_tokens=1, queue_seconds=0.25, progress=first)])
    bench.journal.assign(request, "engine-1")
    again = RequestProgress(2, prefill_seconds=7.0)
    cached = output("r", 1, 11, attempt=2, num_cached_tokens=2, queue_seconds=3.0, progress=again)
    bench.receive("engine-1", [cached])
    last = RequestProgress(2, decode_seconds=2.0)
    end = output("r", 2, 12, attempt=2, finish_reason=FinishReason.LENGTH, progress=last)
    bench.receive("engine-1", [end])
    assert (trace.cached_tokens, trace.num_preemptions) == (1, 3)
    assert (trace.queue_seconds, trace.prefill_seconds, trace.decode_seconds) == (0.25, 0.5, None)
    assert len(bench.observer.first_tokens) == 1
    assert bench.observer.tokens == [1, 1, 1]


async def test_request_moved_without_tokens_has_the_next_times() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.journal.assign(request, "engine-1")
    progress = RequestProgress(prefill_seconds=7.0, decode_seconds=0.0)
    whole = output("r", 0, 10, attempt=2, finish_reason=FinishReason.LENGTH, num_cached_tokens=2, queue_seconds=3.0)
    bench.receive("engine-1", [msgspec.structs.replace(whole, progress=progress)])
    trace = request.trace
    assert (trace.cached_tokens, trace.queue_seconds) == (2, 3.0)
    assert (trace.prefill_seconds, trace.decode_seconds) == (7.0, 0.0)


@pytest.mark.parametrize(("token_id", "stop_token_id"), [(EOS, None), (77, 77)])
async def test_stop_token_is_counted_but_gives_no_text(token_id: int, stop_token_id: int | None) -> None:
    bench = Bench()
    request = bench.add("r")
    stop = output("r", 0, 10, token_id, finish_reason=FinishReason.STOP, stop_token_id=stop_token_id)
    bench.receive(ENGINE, [stop])
    assert await request.collector.take() == Delta("10 .", [10, token_id], FinishReason.STOP, stop_token_id)


async def test_an_end_token_that_did_not_stop_the_request_is_text() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.receive(ENGINE, [output("r", 0, EOS, finish_reason=FinishReason.LENGTH)])
    assert (await request.collector.take()).text == f"{EOS} ."


@pytest.mark.parametrize("position", [0, 2])
async def test_a_gap_or_an_overlap_makes_the_engine_distrusted(position: int) -> None:
    bench = Bench()
    request, other = bench.add("r"), bench.add("other")
    bench.receive(ENGINE, [output("r", 0, 10)])
    bench.receive(ENGINE, [output("r", position, 11), output("other", 0, 12)])
    assert [engine for engine, _ in bench.distrusted] == [ENGINE]
    assert f"from position {position} of request r" in bench.distrusted[0][1]
    assert (await request.collector.take()).token_ids == [10]
    for each in (request, other):
        with pytest.raises(RequestFailed):
            await each.collector.take()


async def test_gap_in_a_large_step_ends_all_requests_of_its_engine() -> None:
    bench = Bench()
    count = 3 * SLICE
    requests = [bench.add(str(n)) for n in range(count)]
    other = bench.add("other")
    bench.journal.assign(other, "engine-1")
    bench.receive(ENGINE, [output(str(n), 5 if n == SLICE + 3 else 0, n) for n in range(count)])
    bench.receive("engine-1", [output("other", 0, 10, attempt=2)])
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(bench.distrusted) == 1
    assert bench.journal.running() == [other]
    assert other.output_token_ids.tolist() == [10]
    for request in requests:
        if request.output_token_ids:
            assert len((await request.collector.take()).token_ids) == 1
        with pytest.raises(RequestFailed):
            await request.collector.take()


async def test_outputs_of_a_distrusted_engine_after_a_gap_are_dropped() -> None:
    bench = Bench()
    requests = [bench.add(str(n)) for n in range(2 * SLICE)]
    other = bench.add("other")
    bench.receive(ENGINE, [output(str(n), 0, n) for n in range(2 * SLICE)])
    bench.receive(ENGINE, [output("0", 5, 10), *(output(str(n), 1, n) for n in range(1, 2 * SLICE))])
    bench.receive(ENGINE, [output("0", 1, 10), output("other", 0, 11)])
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(bench.distrusted) == 1
    assert [request.output_token_ids.tolist() for request in requests] == [[n] for n in range(2 * SLICE)]
    assert other.output_token_ids.tolist() == []
    assert bench.journal.running() == []


async def test_a_lost_engine_is_asked_for_nothing_more() -> None:
    bench = Bench()
    requests = [bench.add(str(n), ["7"]) for n in range(SLICE + 2)]
    outputs = [output(str(n), 0, 8) for n in range(SLICE)]
    bench.receive(ENGINE, [*outputs, output(str(SLICE), 0, 7), output(str(SLICE + 1), 3, 8)])
    bench.lose(ENGINE)
    assert requests[SLICE].output_token_ids.tolist() == [7]
    assert not bench.outputs.actions
    assert (bench.aborts, bench.distrusted) == ([], [])
    assert bench.journal.running() == []
    await asyncio.sleep(0)


async def test_defective_output_fails_only_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(Numbers):
        def push(self, token_ids: Sequence[int]) -> str:
            raise ValueError("a defect")

    bench = Bench()
    broken, others = bench.add("broken"), [bench.add(str(n)) for n in range(2 * SLICE)]
    monkeypatch.setattr(broken, "text", Broken())
    bench.receive(ENGINE, [output("broken", 0, 1), *(output(str(n), 0, n) for n in range(2 * SLICE))])
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(RequestFailed):
        await broken.collector.take()
    assert [each.output_token_ids.tolist() for each in others] == [[n] for n in range(2 * SLICE)]
    assert bench.aborted == ["broken"]
    assert bench.journal.running() == others


async def test_outputs_without_a_present_attempt_are_dropped() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.journal.assign(request, "engine-1")
    assert request.attempt == 2
    bench.receive(ENGINE, [output("r", 0, 10)])
    bench.receive("engine-1", [output("r", 0, 10), output("gone", 0, 1)])
    bench.receive(ENGINE, [output("r", 0, 10, attempt=2)])
    assert request.output_token_ids.tolist() == []
    bench.receive("engine-1", [output("r", 0, 20, attempt=2)])
    assert request.output_token_ids.tolist() == [20]
    assert bench.distrusted == []


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.ABORT])
async def test_request_that_the_engine_gives_up_fails_with_its_reason(reason: FinishReason) -> None:
    bench = Bench()
    request = bench.add("r")
    bench.receive(ENGINE, [output("r", 0, finish_reason=reason, error="the prompt is too long")])
    with pytest.raises(RequestFailed, match="the prompt is too long"):
        await request.collector.take()
    assert bench.observer.finished == [(FinishReason.ERROR, 2, 0)]


@pytest.mark.parametrize(
    ("refusal", "error", "retry_after"),
    [
        (RefusalKind.INVALID, InvalidRequest, None),
        (RefusalKind.OVERLOADED, TooManyRequests, 1),
        (RefusalKind.UNAVAILABLE, EngineUnavailable, 1),
        (RefusalKind.UNKNOWN, RequestFailed, None),
    ],
)
async def test_a_refused_request_fails_with_the_error_of_its_kind(
    refusal: RefusalKind, error: type[Exception], retry_after: float | None
) -> None:
    bench = Bench()
    request = bench.add("r")
    refused = output("r", 0, finish_reason=FinishReason.ERROR, error="the queue is full", refusal=refusal)
    bench.receive(ENGINE, [refused])
    with pytest.raises(error, match="the queue is full") as caught:
        await request.collector.take()
    assert getattr(caught.value, "retry_after", None) == retry_after
    assert bench.observer.finished == [(FinishReason.ERROR, 2, 0)]


async def test_event_loop_runs_between_slices_of_a_large_step() -> None:
    bench = Bench()
    count = 3 * SLICE + 5
    requests = [bench.add(str(n)) for n in range(count)]
    bench.receive(ENGINE, [output(str(n), 0, n) for n in range(count)])
    seen = []
    while (done := sum(bool(request.output_token_ids) for request in requests)) < count:
        seen.append(done)
        await asyncio.sleep(0)
    assert seen == [SLICE, 2 * SLICE, 3 * SLICE]


async def test_steps_that_arrive_during_a_large_one_keep_their_order() -> None:
    bench = Bench()
    count = 2 * SLICE
    requests = [bench.add(str(n)) for n in range(count)]
    for step in range(5):
        bench.receive(ENGINE, [output(str(n), step, n) for n in range(count)])
    for _ in range(5 * count // SLICE):
        await asyncio.sleep(0)
    assert all(len(request.output_token_ids) == 5 for request in requests)
    assert bench.distrusted == []


async def test_outputs_before_the_loss_of_an_engine_are_delivered() -> None:
    bench = Bench()
    count = 2 * SLICE
    requests = [bench.add(str(n)) for n in range(count)]
    bench.receive(ENGINE, [output(str(n), 0, n, finish_reason=FinishReason.LENGTH) for n in range(count)])
    bench.outputs.flush(ENGINE)
    assert bench.journal.running() == []
    assert [request.output_token_ids.tolist() for request in requests] == [[n] for n in range(count)]
    await asyncio.sleep(0)


async def test_a_reader_is_woken_once_for_all_outputs_of_a_batch() -> None:
    bench = Bench()
    request = bench.add("r")
    wakes = 0

    async def read() -> None:
        nonlocal wakes
        while (await request.collector.take()).finish_reason is None:
            wakes += 1

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    bench.receive(ENGINE, [output("r", position, 10) for position in range(50)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wakes == 1
    bench.receive(ENGINE, [output("r", 50, finish_reason=FinishReason.LENGTH)])
    await reader
