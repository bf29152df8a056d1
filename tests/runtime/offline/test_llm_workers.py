"""The offline API with several worker processes: the answers of one, and an error if a worker dies."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvasir import LLM, RequestOutput, SamplingParams
from kvasir.config.options import ConfigError
from kvasir.process.failures import FailureError

PROMPTS = [f"Kvasir {number} is" for number in range(10)]
PARAMS = [SamplingParams(temperature=0, max_tokens=8), SamplingParams(seed=3, temperature=1.0, max_tokens=8, n=2)]
OPTIONS: dict[str, Any] = {"kv_cache_memory_bytes": "32Mi", "threads": 1, "max_model_len": 512}


def texts(outputs: list[RequestOutput]) -> list[list[str]]:
    return [[choice.text for choice in output.outputs] for output in outputs]


def workers() -> list[int]:
    """Return the worker processes of this process."""
    children = (int(pid) for pid in Path("/proc/thread-self/children").read_text().split())
    return [pid for pid in children if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture(scope="module")
def expected() -> Iterator[list[list[list[str]]]]:
    with LLM("demo://", **OPTIONS) as llm:
        yield [texts(llm.generate(PROMPTS, params)) for params in PARAMS]


def test_a_pipeline_answers_as_one_process(expected: list[list[list[str]]]) -> None:
    with LLM("demo://", pipeline_parallel_size=2, **OPTIONS) as split:
        assert len(workers()) == 2
        assert [texts(split.generate(PROMPTS, params)) for params in PARAMS] == expected
    assert workers() == []


def test_a_split_answers_as_one_process_until_a_worker_is_killed(expected: list[list[list[str]]]) -> None:
    with LLM("demo://", tensor_parallel_size=2, **OPTIONS) as split:
        victim, _ = workers()
        assert [texts(split.generate(PROMPTS, params)) for params in PARAMS] == expected
        threading.Timer(0.2, os.kill, [victim, signal.SIGKILL]).start()
        endless = SamplingParams(max_tokens=400, ignore_eos=True)
        with pytest.raises(FailureError, match="worker 0 was killed by SIGKILL"):
            split.generate(["Kvasir is"] * 1000, endless)
    assert workers() == []


def test_a_split_that_the_model_does_not_allow_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size 3 does not divide num_attention_heads = \d"):
        LLM("demo://", tensor_parallel_size=3, **OPTIONS)
