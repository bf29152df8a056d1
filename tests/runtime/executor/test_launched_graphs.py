import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model_info import load_model_info
from kvasir.request.params import SamplingParams
from kvasir.worker import worker
from runtime.executor.split_engine import SplitEngine
from runtime.models.tiny import llama, save
from runtime.worker.cpu_graphs import CpuRecorder, capture_on_cpu
from runtime.worker.driver import engine_settings
from runtime.worker.late_copies import LateCopies

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

LIMITS = {"num_blocks": 14, "max_num_batched_tokens": 24, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SplitEngine, SplitEngine, CpuRecorder]]:
    model = load_model_info(save(llama(), tmp_path_factory.mktemp("llama")))
    whole = SplitEngine(model, engine_settings(**LIMITS))
    settings = engine_settings(**LIMITS, async_scheduling=True, graph_sizes=(1, 2, 4, 8))
    with pytest.MonkeyPatch.context() as patch:
        recorder = capture_on_cpu(patch)
        patch.setattr(worker, "HostCopies", lambda device: LateCopies())
        launching = SplitEngine(model, settings, InProcessExecutor(settings, model, launches=True))
    yield whole, launching, recorder
    whole.close()
    launching.close()


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 0.0, "bad_words": ((7, 8),)},
    {"temperature": 0.0, "logprobs": 2},
]


def answers(engine: SplitEngine) -> dict[str, list[int]]:
    """Ten requests. The cache is too small for all of them, so some are preempted."""
    for number in range(10):
        params = SamplingParams(max_tokens=3 + number % 4, seed=number, ignore_eos=True, **KINDS[number % 5])
        engine.add(f"{number}", range(2, 6 + 3 * number), params)
    engine.run()
    return {f"{number}": engine.answers[f"{number}"].tokens for number in range(10)}


def test_requests_are_answered_as_by_plain_steps(engines: tuple[SplitEngine, SplitEngine, CpuRecorder]) -> None:
    whole, launching, recorder = engines
    assert answers(launching) == answers(whole)
    assert recorder.replays
