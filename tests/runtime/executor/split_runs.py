"""The same requests for an engine of one process and one that is split over several."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from transformers import PreTrainedModel, Qwen3Config

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.executor.multiprocess import MultiprocessExecutor
from kvasir.hub.model_info import load_model_info
from kvasir.request.params import SamplingParams
from runtime.executor.split_engine import SplitEngine
from runtime.models.tiny import MODELS, decoder, llama, save
from runtime.worker.driver import engine_settings, greedy

SPLIT_MODELS: dict[str, tuple[Callable[[], PreTrainedModel], int]] = {
    "llama": (llama, 14),
    "qwen3-one-kv-head": (lambda: decoder(Qwen3Config, head_dim=32, num_key_value_heads=1), 14),
    "gpt2": (MODELS["gpt2"], 14),
    "qwen3-moe": (MODELS["qwen3-moe"], 14),
    "gemma3": (MODELS["gemma3"], 40),
}
"""Models by name, and KV blocks: so few that requests are preempted."""
TEXT = [(7 * place) % 240 + 5 for place in range(90)]
"""Prompts begin with a part of it, so that they share blocks."""
MAX_SECONDS = 20.0
"""Seconds from a death to the end. A machine without other load takes well under one; a timeout takes longer."""

Engines = tuple[SplitEngine, SplitEngine]
Action = tuple[Any, ...]


@contextmanager
def whole_and_split(name: str, executor: ExecutorConfig, folder: Path) -> Iterator[Engines]:
    build, blocks = SPLIT_MODELS[name]
    model = load_model_info(save(build(), folder))
    limits = {"num_blocks": blocks, "max_num_batched_tokens": 24, "max_num_seqs": 8}
    whole = SplitEngine(model, engine_settings(**limits))
    split = SplitEngine(model, engine_settings(**limits, executor=executor))
    assert isinstance(split.executor, MultiprocessExecutor)
    yield whole, split
    whole.executor.shutdown()
    split.executor.shutdown()


PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(5, 60),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1.0]),
    top_k=st.sampled_from([0, 5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    logprobs=st.sampled_from([None, 3]),
    prompt_logprobs=st.sampled_from([None, 2]),
    ignore_eos=st.just(True),
)
PROMPTS = st.builds(
    lambda shared, own: TEXT[:shared] + own,
    st.integers(0, 40),
    st.lists(st.integers(2, 250), min_size=1, max_size=12),
)
ADD = st.tuples(st.just("add"), PROMPTS, st.lists(st.integers(2, 250), max_size=9), PARAMS)
STEP = st.tuples(st.just("step"), st.integers(1, 12))
ABORT = st.tuples(st.just("abort"), st.integers(0, 5))
ACTIONS = st.lists(st.one_of(ADD, ADD, STEP, ABORT), min_size=8, max_size=30)


def play(engine: SplitEngine, actions: list[Action]) -> None:
    """Run the actions, then everything that is left. A request may have outputs of an earlier attempt."""
    engine.forget()
    for number, action in enumerate(actions):
        match action:
            case ("add", prompt, outputs, params):
                engine.add(f"r{number}", prompt, params, outputs[: params.max_tokens - 1])
            case ("step", count):
                for _ in range(count):
                    engine.step()
            case ("abort", place):
                if recent := list(engine.answers)[-6:]:
                    engine.abort(recent[place % len(recent)])
    engine.run()


def run_long_requests(engines: Engines) -> None:
    """They are computed in chunks, share blocks, preempt each other and continue earlier outputs."""
    before = [(engine.num_preemptions, engine.num_hit_tokens) for engine in engines]
    for engine in engines:
        engine.forget()
        engine.add("first", TEXT[:50], greedy(6))
        engine.run()
        for index in range(5):
            params = SamplingParams(max_tokens=60, seed=index, temperature=index % 2, ignore_eos=True)
            engine.add(str(index), TEXT[: 25 + index], params, [index, 9, 8][:index])
        for _ in range(12):
            engine.step()
        engine.abort("2")
        engine.run()
        assert [len(engine.answers[name].tokens) for name in ("0", "1", "3", "4")] == [60, 59, 57, 57]
    for engine, (preemptions, hits) in zip(engines, before, strict=True):
        assert engine.num_preemptions > preemptions
        assert engine.num_hit_tokens >= hits + 24


def compute_for_ever(engine: SplitEngine) -> None:
    while True:
        engine.add("again", TEXT[:5], greedy(200))
        engine.run()


def assert_same_until_aborted(split: SplitEngine, whole: SplitEngine) -> None:
    """Requests that are aborted may have got more tokens from one engine than from the other."""
    assert split.answers.keys() == whole.answers.keys()
    for name, answer in split.answers.items():
        expected = whole.answers[name]
        if name in split.aborted:
            count = min(len(answer.tokens), len(expected.tokens))
            assert answer.tokens[:count] == expected.tokens[:count]
            continue
        assert answer == expected
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert answer.prompt_logprobs == pytest.approx(expected.prompt_logprobs, abs=1e-3)
