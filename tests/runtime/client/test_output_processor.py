"""Outputs of engines become deltas, in order, without starving the event loop."""

import asyncio

import pytest

from kvasir.client.collector import Delta
from kvasir.client.journal import Journal, LiveRequest
from kvasir.client.output_processor import SLICE, OutputProcessor
from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, RequestFailed, TooManyRequests
from kvasir.client.text.stop_strings import StopSearch, StopStrings
from kvasir.link.protocol import FinishReason, Logprobs, RefusalKind, RequestOutput
from kvasir.params import SamplingParams
from runtime.client.observers import RecordingObserver

ENGINE = "engine-0"
EOS = 2


class Numbers:
    """A text stream that spells the token ids."""

    def push(self, token_ids: list[int]) -> str:
        return "".join(f"{token_id} " for token_id in token_ids)

    def finish(self) -> str:
        return "."


class Bench:
    """An output processor with its journal; an engine that is not trusted loses its requests."""

    def __init__(self) -> None:
        self.journal = Journal(10_000)
        self.observer = RecordingObserver()
        self.distrusted: list[tuple[str, str]] = []
        self.aborted: list[str] = []
        self.outputs = OutputProcessor(
            self.journal, self.observer, (EOS,), self.distrust, lambda engine, ids: self.aborted.extend(ids)
        )

    def distrust(self, engine: str, reason: str) -> None:
        """As AsyncLLM does when the link takes the engine for lost, which it does once."""
        if any(engine == known for known, _ in self.distrusted):
            return
        self.distrusted.append((engine, reason))
        self.outputs.flush(engine)
        for request in self.journal.of_engine(engine):
            self.outputs.fail(request, "lost")

    def add(
        self, request_id: str, stop: list[str] | None = None, *, include: bool = False, min_tokens: int = 0
    ) -> LiveRequest:
        stops = None if stop is None else StopSearch(StopStrings(stop), include)
        params = SamplingParams(max_tokens=100, seed=0, min_tokens=min_tokens)
        request = LiveRequest(request_id, [1, 1], params, Numbers(), stops, include)
        self.journal.add(request)
        self.journal.assign(request, ENGINE)
        return request


def output(request_id: str, position: int, *token_ids: int, attempt: int = 1, **more: object) -> RequestOutput:
    return RequestOutput(request_id, attempt, position, list(token_ids), **more)  # type: ignore[arg-type]


async def test_steps_become_deltas_and_the_last_one_has_the_finish_reason() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.outputs.receive(ENGINE, [output("r", 0, 10)])
    assert await request.collector.take() == Delta("10 ", [10])
    bench.outputs.receive(ENGINE, [output("r", 1, 11, 12)])
    bench.outputs.receive(ENGINE, [output("r", 3, 13, finish_reason=FinishReason.LENGTH)])
    assert await request.collector.take() == Delta("11 12 13 .", [11, 12, 13], FinishReason.LENGTH)
    assert bench.observer.tokens == [1, 2, 1]
    assert len(bench.observer.first_tokens) == 1
    assert bench.observer.finished == [(FinishReason.LENGTH, 2, 4)]


@pytest.mark.parametrize(("token_id", "stop_token_id"), [(EOS, None), (77, 77)])
async def test_the_token_that_stopped_the_request_is_counted_but_gives_no_text(
    token_id: int, stop_token_id: int | None
) -> None:
    bench = Bench()
    request = bench.add("r")
    stop = output("r", 0, 10, token_id, finish_reason=FinishReason.STOP, stop_token_id=stop_token_id)
    bench.outputs.receive(ENGINE, [stop])
    assert await request.collector.take() == Delta("10 .", [10, token_id], FinishReason.STOP, stop_token_id)


async def test_an_end_token_that_did_not_stop_the_request_is_text() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.outputs.receive(ENGINE, [output("r", 0, EOS, finish_reason=FinishReason.LENGTH)])
    assert (await request.collector.take()).text == f"{EOS} ."


@pytest.mark.parametrize("position", [0, 2])
async def test_a_gap_or_an_overlap_makes_the_engine_distrusted(position: int) -> None:
    bench = Bench()
    request, other = bench.add("r"), bench.add("other")
    bench.outputs.receive(ENGINE, [output("r", 0, 10)])
    bench.outputs.receive(ENGINE, [output("r", position, 11), output("other", 0, 12)])
    assert [engine for engine, _ in bench.distrusted] == [ENGINE]
    assert f"from position {position} of request r" in bench.distrusted[0][1]
    assert (await request.collector.take()).token_ids == [10]
    for each in (request, other):
        with pytest.raises(RequestFailed):
            await each.collector.take()


async def test_a_gap_in_the_middle_of_a_large_step_ends_all_requests_of_the_engine_and_no_others() -> None:
    bench = Bench()
    count = 3 * SLICE
    requests = [bench.add(str(n)) for n in range(count)]
    other = bench.add("other")
    bench.journal.assign(other, "engine-1")
    bench.outputs.receive(ENGINE, [output(str(n), 5 if n == SLICE + 3 else 0, n) for n in range(count)])
    bench.outputs.receive("engine-1", [output("other", 0, 10, attempt=2)])
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(bench.distrusted) == 1
    assert bench.journal.unfinished() == [other]
    assert other.output_token_ids == [10]
    for request in requests:
        if request.output_token_ids:
            assert len((await request.collector.take()).token_ids) == 1
        with pytest.raises(RequestFailed):
            await request.collector.take()


async def test_an_output_that_cannot_be_handled_costs_its_request_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(Numbers):
        def push(self, token_ids: list[int]) -> str:
            raise ValueError("a defect")

    bench = Bench()
    broken, others = bench.add("broken"), [bench.add(str(n)) for n in range(2 * SLICE)]
    monkeypatch.setattr(broken, "text", Broken())
    bench.outputs.receive(ENGINE, [output("broken", 0, 1), *(output(str(n), 0, n) for n in range(2 * SLICE))])
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(RequestFailed):
        await broken.collector.take()
    assert [each.output_token_ids for each in others] == [[n] for n in range(2 * SLICE)]
    assert bench.aborted == ["broken"]
    assert bench.journal.unfinished() == others


async def test_outputs_of_an_older_attempt_of_another_engine_or_of_no_request_are_dropped() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.journal.assign(request, "engine-1")
    assert request.attempt == 2
    bench.outputs.receive(ENGINE, [output("r", 0, 10)])
    bench.outputs.receive("engine-1", [output("r", 0, 10), output("gone", 0, 1)])
    bench.outputs.receive(ENGINE, [output("r", 0, 10, attempt=2)])
    assert request.output_token_ids == []
    bench.outputs.receive("engine-1", [output("r", 0, 20, attempt=2)])
    assert request.output_token_ids == [20]
    assert bench.distrusted == []


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.ABORT])
async def test_a_request_that_the_engine_gives_up_fails_with_its_reason(reason: FinishReason) -> None:
    bench = Bench()
    request = bench.add("r")
    bench.outputs.receive(ENGINE, [output("r", 0, finish_reason=reason, error="the prompt is too long")])
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
    bench.outputs.receive(ENGINE, [refused])
    with pytest.raises(error, match="the queue is full") as caught:
        await request.collector.take()
    assert getattr(caught.value, "retry_after", None) == retry_after
    assert bench.observer.finished == [(FinishReason.ERROR, 2, 0)]


async def test_a_large_step_is_taken_in_slices_between_which_the_loop_runs() -> None:
    bench = Bench()
    count = 3 * SLICE + 5
    requests = [bench.add(str(n)) for n in range(count)]
    bench.outputs.receive(ENGINE, [output(str(n), 0, n) for n in range(count)])
    seen = []
    while (done := sum(bool(request.output_token_ids) for request in requests)) < count:
        seen.append(done)
        await asyncio.sleep(0)
    assert seen == [SLICE, 2 * SLICE, 3 * SLICE]


async def test_steps_that_arrive_while_a_large_one_is_taken_keep_their_order() -> None:
    bench = Bench()
    count = 2 * SLICE
    requests = [bench.add(str(n)) for n in range(count)]
    for step in range(5):
        bench.outputs.receive(ENGINE, [output(str(n), step, n) for n in range(count)])
    for _ in range(5 * count // SLICE):
        await asyncio.sleep(0)
    assert all(len(request.output_token_ids) == 5 for request in requests)
    assert bench.distrusted == []


async def test_what_an_engine_sent_before_it_was_lost_is_still_delivered() -> None:
    bench = Bench()
    count = 2 * SLICE
    requests = [bench.add(str(n)) for n in range(count)]
    bench.outputs.receive(ENGINE, [output(str(n), 0, n, finish_reason=FinishReason.LENGTH) for n in range(count)])
    bench.outputs.flush(ENGINE)
    assert bench.journal.unfinished() == []
    assert [request.output_token_ids for request in requests] == [[n] for n in range(count)]
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
    bench.outputs.receive(ENGINE, [output("r", position, 10) for position in range(50)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wakes == 1
    bench.outputs.receive(ENGINE, [output("r", 50, finish_reason=FinishReason.LENGTH)])
    await reader


def scores(*token_ids: int) -> Logprobs:
    return Logprobs(
        [-float(i) for i in token_ids],
        [1 for _ in token_ids],
        [[i] for i in token_ids],
        [[-0.5] for _ in token_ids],
    )


@pytest.mark.parametrize(("include", "text"), [(False, "10 "), (True, "10 11 1")])
async def test_a_stop_string_across_tokens_and_steps_ends_the_request_at_the_token_that_completes_it(
    include: bool, text: str
) -> None:
    bench = Bench()
    request = bench.add("r", ["11 1"], include=include)
    bench.outputs.receive(ENGINE, [output("r", 0, 10, 11, logprobs=scores(10, 11))])
    assert bench.aborted == []
    bench.outputs.receive(ENGINE, [output("r", 2, 12, 13, 14, logprobs=scores(12, 13, 14))])
    assert await request.collector.take() == Delta(
        text, [10, 11, 12], FinishReason.STOP, "11 1", logprobs=scores(10, 11, 12)
    )
    assert bench.aborted == ["r"]
    assert bench.observer.finished == [(FinishReason.STOP, 2, 3)]
    assert sum(bench.observer.tokens) == 3
    bench.outputs.receive(ENGINE, [output("r", 5, 15)])  # the engine did not know yet
    assert request.output_token_ids == [10, 11, 12]
    assert bench.distrusted == []


async def test_text_that_may_begin_a_stop_string_waits_and_comes_with_its_tokens() -> None:
    bench = Bench()
    request = bench.add("r", ["11 22"])
    bench.outputs.receive(ENGINE, [output("r", 0, 10)])
    assert await request.collector.take() == Delta("10 ", [10])
    reader = asyncio.create_task(request.collector.take())
    bench.outputs.receive(ENGINE, [output("r", 1, 11)])
    await asyncio.sleep(0)
    assert not reader.done()
    bench.outputs.receive(ENGINE, [output("r", 2, 12)])
    assert await reader == Delta("11 12 ", [11, 12])


async def test_what_was_held_back_comes_when_the_engine_ends_the_request() -> None:
    bench = Bench()
    request = bench.add("r", ["11 22"])
    bench.outputs.receive(ENGINE, [output("r", 0, 10, 11, EOS, finish_reason=FinishReason.STOP)])
    assert await request.collector.take() == Delta("10 11 .", [10, 11, EOS], FinishReason.STOP)
    assert bench.aborted == []


async def test_a_stop_string_wins_over_the_length_that_its_token_reaches() -> None:
    bench = Bench()
    request = bench.add("r", ["11"])
    bench.outputs.receive(ENGINE, [output("r", 0, 10, 11, finish_reason=FinishReason.LENGTH)])
    assert await request.collector.take() == Delta("10 ", [10, 11], FinishReason.STOP, "11")
    assert bench.aborted == []


async def test_a_stop_string_that_the_last_held_text_completes_ends_the_request() -> None:
    bench = Bench()
    request = bench.add("r", [" ."])
    bench.outputs.receive(ENGINE, [output("r", 0, 10, finish_reason=FinishReason.LENGTH)])
    assert await request.collector.take() == Delta("10", [10], FinishReason.STOP, " .")


async def test_stop_strings_count_after_the_first_tokens_only() -> None:
    bench = Bench()
    request = bench.add("r", ["0 1", "2"], min_tokens=3)
    # "0 1" is complete with the second token, "2" with the third: both are too early.
    bench.outputs.receive(ENGINE, [output("r", 0, 10, 11, 12, 13, 20, 14)])
    assert await request.collector.take() == Delta("10 11 12 13 ", [10, 11, 12, 13, 20], FinishReason.STOP, "2")


@pytest.mark.parametrize(("token_id", "stop_token_id"), [(EOS, None), (77, 77)])
async def test_the_token_that_stopped_the_request_is_text_where_that_is_asked_for(
    token_id: int, stop_token_id: int | None
) -> None:
    bench = Bench()
    request = bench.add("r", include=True)
    stop = output("r", 0, 10, token_id, finish_reason=FinishReason.STOP, stop_token_id=stop_token_id)
    bench.outputs.receive(ENGINE, [stop])
    assert (await request.collector.take()).text == f"10 {token_id} ."


async def test_requests_that_stop_strings_end_in_one_step_are_aborted_together() -> None:
    bench = Bench()
    calls: list[tuple[str, list[str]]] = []
    bench.outputs = OutputProcessor(
        bench.journal, bench.observer, (EOS,), bench.distrust, lambda engine, ids: calls.append((engine, ids))
    )
    for request_id in ("a", "b", "c"):
        bench.add(request_id, ["7"])
    bench.outputs.receive(ENGINE, [output("a", 0, 7), output("b", 0, 8), output("c", 0, 7)])
    assert calls == [(ENGINE, ["a", "c"])]


async def test_logprobs_of_the_prompt_come_with_the_first_delta() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.outputs.receive(ENGINE, [output("r", 0, 10, logprobs=scores(10), prompt_logprobs=scores(1))])
    assert await request.collector.take() == Delta("10 ", [10], logprobs=scores(10), prompt_logprobs=scores(1))
