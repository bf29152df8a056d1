import asyncio

import pytest

from kvasir.client.live_request import Collector, Delta
from kvasir.link.protocol import FinishReason, Logprobs


async def test_a_slow_reader_gets_everything_in_one_delta() -> None:
    collector = Collector()
    for n in range(1000):
        collector.put(f"{n} ", [n], None, None)
    collector.put("end", [1000], FinishReason.STOP, 1000)
    delta = await collector.take()
    assert delta == Delta(
        "".join(f"{n} " for n in range(1000)) + "end", list(range(1001)), FinishReason.STOP, stop_reason=1000
    )


async def test_tokens_without_text_come_with_the_next_text() -> None:
    collector = Collector()
    reader = asyncio.create_task(collector.take())
    await asyncio.sleep(0)
    collector.put("", [1], None, None)
    await asyncio.sleep(0)
    assert not reader.done()
    collector.put("é", [2], None, None)
    assert await reader == Delta("é", [1, 2])


async def test_logprobs_of_merged_deltas_are_those_of_all_their_tokens() -> None:
    collector = Collector()
    prompt = Logprobs([-3.0], [9], [[1]], [[-0.5]])
    for n in range(3):
        collector.put_logprobs(Logprobs([-float(n)], [n], [[n, n + 1]], [[-0.5, -1.5]]), prompt if n == 0 else None)
        collector.put(f"{n} ", [n])
    delta = await collector.take()
    assert delta.logprobs == Logprobs([0.0, -1.0, -2.0], [0, 1, 2], [[0, 1], [1, 2], [2, 3]], [[-0.5, -1.5]] * 3)
    assert delta.prompt_logprobs == prompt
    collector.put("end", [3])
    later = await collector.take()
    assert (later.logprobs, later.prompt_logprobs) == (None, None)
    assert len(delta.logprobs.token) == 3


async def test_the_last_delta_may_be_without_text() -> None:
    collector = Collector()
    collector.put("", [7], FinishReason.LENGTH, None)
    assert await collector.take() == Delta("", [7], FinishReason.LENGTH)


async def test_a_failure_is_raised_after_what_came_before_it() -> None:
    collector = Collector()
    collector.put("so far", [1], None, None)
    collector.fail(RuntimeError("lost"))
    assert (await collector.take()).text == "so far"
    with pytest.raises(RuntimeError, match="lost"):
        await collector.take()


async def test_a_failure_wakes_a_waiting_reader() -> None:
    collector = Collector()
    reader = asyncio.create_task(collector.take())
    await asyncio.sleep(0)
    collector.fail(RuntimeError("lost"))
    with pytest.raises(RuntimeError, match="lost"):
        await reader


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    collector = Collector()
    reader = asyncio.create_task(collector.take())
    await asyncio.sleep(0)
    reader.cancel()
    collector.put("text", [1], None, None)
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (await collector.take()).text == "text"
