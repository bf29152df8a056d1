"""`AsyncLLM` and `LLMEngine`: outputs by kind, each error to its own request, nothing left behind."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kvasir import LLM, AsyncLLM, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from kvasir.worker.step import StepInput, StepOutput

OPTIONS: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 256, "kv_cache_memory_bytes": "32Mi", "threads": 1}
ENDLESS = SamplingParams(max_tokens=200, ignore_eos=True)


def sampled(kind: RequestOutputKind, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, output_kind=kind, **fields)


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    with AsyncLLM("demo://", **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def engine() -> Iterator[LLMEngine]:
    engine = LLMEngine("demo://", **OPTIONS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected() -> RequestOutput:
    with LLM("demo://", **OPTIONS) as llm:
        return llm.generate("Kvasir is", sampled(RequestOutputKind.CUMULATIVE, n=2, logprobs=1))[0]


async def streamed(llm: AsyncLLM, params: SamplingParams, request_id: str = "one") -> list[RequestOutput]:
    return [output async for output in llm.generate("Kvasir is", params, request_id)]


def stepped(engine: LLMEngine, params: SamplingParams) -> list[RequestOutput]:
    engine.add_request("one", "Kvasir is", params)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


Run = Callable[[SamplingParams], list[RequestOutput]]


@pytest.fixture(params=["AsyncLLM", "LLMEngine"])
def run(request: pytest.FixtureRequest, llm: AsyncLLM, engine: LLMEngine) -> Run:
    if request.param == "LLMEngine":
        return lambda params: stepped(engine, params)
    return lambda params: asyncio.run(streamed(llm, params))


def test_deltas_together_are_the_output(run: Run, expected: RequestOutput) -> None:
    outputs = run(sampled(RequestOutputKind.DELTA, n=2, logprobs=1))
    assert [output.finished for output in outputs].count(True) == 1
    assert outputs[-1].finished
    for choice in expected.outputs:
        parts = [each for output in outputs for each in output.outputs if each.index == choice.index]
        assert len(parts) > 2
        assert "".join(part.text for part in parts) == choice.text
        assert [token for part in parts for token in part.token_ids] == choice.token_ids
        assert [place for part in parts for place in part.logprobs or ()] == choice.logprobs
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]


def test_cumulative_outputs_grow_to_the_whole(run: Run, expected: RequestOutput) -> None:
    outputs = run(sampled(RequestOutputKind.CUMULATIVE, n=2, logprobs=1))
    for choice in expected.outputs:
        parts = [each for output in outputs for each in output.outputs if each.index == choice.index]
        assert parts[-1] == choice
        assert all(later.text.startswith(earlier.text) for earlier, later in itertools.pairwise(parts))
        assert [len(part.token_ids) for part in parts] == sorted({len(part.token_ids) for part in parts})


def test_the_final_output_comes_once(run: Run, expected: RequestOutput) -> None:
    [output] = run(sampled(RequestOutputKind.FINAL_ONLY, n=2, logprobs=1))
    assert output.outputs == expected.outputs
    assert output.finished


def test_tokens_without_text_are_streamed_too(run: Run, expected: RequestOutput) -> None:
    outputs = run(sampled(RequestOutputKind.DELTA, detokenize=False))
    assert len(outputs) > 2
    assert {choice.text for output in outputs for choice in output.outputs} == {""}
    tokens = [token for output in outputs for token in output.outputs[0].token_ids]
    assert tokens == expected.outputs[0].token_ids


async def test_streams_run_at_once_and_each_has_its_own(llm: AsyncLLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=4 + index, ignore_eos=True) for index in range(9)]
    found = await asyncio.gather(*(streamed(llm, each, f"s{index}") for index, each in enumerate(params)))
    assert [len(outputs[-1].outputs[0].token_ids) for outputs in found] == [4 + index for index in range(9)]


async def test_an_error_reaches_its_own_request_only(llm: AsyncLLM) -> None:
    other = asyncio.create_task(streamed(llm, sampled(RequestOutputKind.DELTA), "other"))
    with pytest.raises(ValueError, match="context length is 256"):
        await anext(llm.generate({"prompt_token_ids": [5] * 300}, ENDLESS, "long"))
    bad = SamplingParams(structured_outputs={"regex": "("})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="grammar"):
        await streamed(llm, bad, "bad")
    assert (await other)[-1].finished


async def test_a_closed_generator_aborts_its_request(llm: AsyncLLM) -> None:
    stream = llm.generate("Kvasir is", ENDLESS, "again")
    await anext(stream)
    with pytest.raises(ValueError, match="'again' is still running"):
        await anext(llm.generate("Kvasir is", ENDLESS, "again"))
    await stream.aclose()
    assert await streamed(llm, sampled(RequestOutputKind.FINAL_ONLY), "again")
    assert await llm.reset_prefix_cache()


def test_an_abort_leaves_no_step_in_flight() -> None:
    engine = LLMEngine("demo://", async_scheduling=True, **OPTIONS)
    engine.add_request("one", "Kvasir is", ENDLESS)
    for _ in range(4):
        engine.step()
    engine.abort_request("one")
    assert not engine.engine.has_work
    assert engine.reset_prefix_cache()
    engine.close()


async def test_an_aborted_request_ends_with_an_error(llm: AsyncLLM) -> None:
    stream = llm.generate("Kvasir is", ENDLESS, "victim")
    await anext(stream)
    await llm.abort(["victim", "unknown"])
    with pytest.raises(RuntimeError, match="the request victim was aborted"):
        async for _ in stream:
            pass


def shut_down_during(work: Callable[[AsyncLLM], Coroutine[Any, Any, None]]) -> None:
    llm = AsyncLLM("demo://", **OPTIONS)
    try:
        asyncio.run(work(llm))
    finally:
        llm.shutdown()
        llm.shutdown()


def test_a_shutdown_ends_streams_and_its_thread() -> None:
    before = set(threading.enumerate())

    async def work(llm: AsyncLLM) -> None:
        stream = llm.generate("Kvasir is", ENDLESS, "one")
        await anext(stream)
        await asyncio.to_thread(llm.shutdown)
        with pytest.raises(RuntimeError, match="was shut down"):
            async for _ in stream:
                pass
        with pytest.raises(RuntimeError, match="was shut down"):
            await anext(llm.generate("Kvasir is", ENDLESS, "two"))

    shut_down_during(work)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "AsyncLLM"]


def test_a_failed_step_ends_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(step: StepInput) -> StepOutput:
        raise MemoryError("full")

    async def work(llm: AsyncLLM) -> None:
        streams = [llm.generate("Kvasir is", ENDLESS, name) for name in "ab"]
        for stream in streams:
            await anext(stream)
        monkeypatch.setattr(llm._engine.engine._core._executor, "submit", fail)
        for stream in streams:
            with pytest.raises(MemoryError, match="full"):
                async for _ in stream:
                    pass
        with pytest.raises(MemoryError):
            await llm.check_health()
        with pytest.raises(MemoryError):
            await anext(llm.generate("Kvasir is", ENDLESS, "late"))

    shut_down_during(work)


def test_an_idle_thread_waits_without_work(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setattr(llm._engine, "advance", lambda: steps.append(1))
    asyncio.run(llm.check_health())
    asyncio.run(llm.reset_prefix_cache())
    assert not steps


def test_an_aborted_prompt_of_an_engine_has_no_output(engine: LLMEngine) -> None:
    engine.add_request("gone", "Kvasir is", ENDLESS)
    engine.add_request("stays", "Kvasir is", sampled(RequestOutputKind.FINAL_ONLY, n=2))
    engine.step()
    engine.abort_request(["gone", "unknown"])
    assert engine.get_num_unfinished_requests() == 1
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert [output.request_id for output in outputs] == ["stays"]
    assert engine.step() == []
    engine.engine._core.check_idle()
