import asyncio

import pytest

from kvasir.client.live_request import Delta
from kvasir.link.protocol import FinishReason
from runtime.client.output_bench import ENGINE, EOS, Bench, output, scores


@pytest.mark.parametrize(("include", "text"), [(False, "10 "), (True, "10 11 1")])
async def test_stop_string_across_steps_ends_at_its_last_token(include: bool, text: str) -> None:
    bench = Bench()
    request = bench.add("r", ["11 1"], include=include)
    bench.receive(ENGINE, [output("r", 0, 10, 11, logprobs=scores(10, 11))])
    assert bench.aborted == []
    bench.receive(ENGINE, [output("r", 2, 12, 13, 14, logprobs=scores(12, 13, 14))])
    assert await request.collector.take() == Delta(
        text, [10, 11, 12], FinishReason.STOP, "11 1", logprobs=scores(10, 11, 12)
    )
    assert bench.aborted == ["r"]
    assert bench.observer.finished == [(FinishReason.STOP, 2, 3)]
    assert sum(bench.observer.tokens) == 3
    bench.receive(ENGINE, [output("r", 5, 15)])  # the engine did not know yet
    assert request.output_token_ids.tolist() == [10, 11, 12]
    assert bench.distrusted == []


async def test_text_that_may_begin_a_stop_string_comes_with_its_tokens() -> None:
    bench = Bench()
    request = bench.add("r", ["11 22"])
    bench.receive(ENGINE, [output("r", 0, 10)])
    assert await request.collector.take() == Delta("10 ", [10])
    reader = asyncio.create_task(request.collector.take())
    bench.receive(ENGINE, [output("r", 1, 11)])
    await asyncio.sleep(0)
    assert not reader.done()
    bench.receive(ENGINE, [output("r", 2, 12)])
    assert await reader == Delta("11 12 ", [11, 12])


async def test_held_text_comes_when_the_engine_ends_the_request() -> None:
    bench = Bench()
    request = bench.add("r", ["11 22"])
    bench.receive(ENGINE, [output("r", 0, 10, 11, EOS, finish_reason=FinishReason.STOP)])
    assert await request.collector.take() == Delta("10 11 .", [10, 11, EOS], FinishReason.STOP)
    assert bench.aborted == []


async def test_stop_string_wins_over_the_length_that_its_token_reaches() -> None:
    bench = Bench()
    request = bench.add("r", ["11"])
    bench.receive(ENGINE, [output("r", 0, 10, 11, finish_reason=FinishReason.LENGTH)])
    assert await request.collector.take() == Delta("10 ", [10, 11], FinishReason.STOP, "11")
    assert bench.aborted == []


async def test_stop_string_completed_by_held_text_ends_the_request() -> None:
    bench = Bench()
    request = bench.add("r", [" ."])
    bench.receive(ENGINE, [output("r", 0, 10, finish_reason=FinishReason.LENGTH)])
    assert await request.collector.take() == Delta("10", [10], FinishReason.STOP, " .")


async def test_stop_strings_count_after_the_first_tokens_only() -> None:
    bench = Bench()
    request = bench.add("r", ["0 1", "2"], min_tokens=3)
    # "0 1" is complete with the second token, "2" with the third: both are too early.
    bench.receive(ENGINE, [output("r", 0, 10, 11, 12, 13, 20, 14)])
    assert await request.collector.take() == Delta("10 11 12 13 ", [10, 11, 12, 13, 20], FinishReason.STOP, "2")


@pytest.mark.parametrize(("token_id", "stop_token_id"), [(EOS, None), (77, 77)])
async def test_stop_token_is_text_if_asked_for(token_id: int, stop_token_id: int | None) -> None:
    bench = Bench()
    request = bench.add("r", include=True)
    stop = output("r", 0, 10, token_id, finish_reason=FinishReason.STOP, stop_token_id=stop_token_id)
    bench.receive(ENGINE, [stop])
    assert (await request.collector.take()).text == f"10 {token_id} ."


async def test_requests_ended_by_strings_in_one_step_abort_together() -> None:
    bench = Bench()
    for request_id in ("a", "b", "c"):
        bench.add(request_id, ["7"])
    bench.receive(ENGINE, [output("a", 0, 7), output("b", 0, 8), output("c", 0, 7)])
    assert bench.aborts == [(ENGINE, ["a", "c"])]


async def test_logprobs_of_the_prompt_come_with_the_first_delta() -> None:
    bench = Bench()
    request = bench.add("r")
    bench.receive(ENGINE, [output("r", 0, 10, logprobs=scores(10), prompt_logprobs=scores(1))])
    assert await request.collector.take() == Delta("10 ", [10], logprobs=scores(10), prompt_logprobs=scores(1))
