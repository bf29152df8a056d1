"""Time that the host needs for a decode step, with a device that computes nothing.

    python -m bench.host_step
    python -m bench.host_step --requests 1,256 --steps 500

A GPU waits for the host if its steps are shorter than this. The engine takes the path of a GPU: overlapped steps,
the planner of the Triton kernels, the memory of a step, and a CUDA graph for each size. But it runs on the CPU, the
graph is a recording that computes nothing, and each greedy step samples from the same 128 logits. The costs of CUDA
itself are missing: launches, events and copies. To compare two versions, alternate between them.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

import torch
from bench.gpu.engines import engine_config
from bench.gpu.shapes import QWEN3_06B, tiny

from kvasir.config.machine import cpu_name
from kvasir.engine.build import build_core, prepare_workers, resolve_settings
from kvasir.engine.core import EngineCore
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.located_model import read_model
from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.layers.step_memory import DeviceMemory
from kvasir.link.protocol import AddRequest
from kvasir.models.forward_batch import Hidden
from kvasir.params import SamplingParams
from kvasir.tokens import packed
from kvasir.worker.batch import inputs
from kvasir.worker.batch.inputs import StepBatch
from kvasir.worker.model_runner import ModelRunner

CONTEXT: Final = 2048
MODEL: Final = replace(tiny(QWEN3_06B), context=CONTEXT)
LEAD_STEPS: Final = 50
"""Steps before the measurement."""
MOST_STEPS: Final = 1900
FRONTEND: Final = "bench"


class _Nothing:
    """A Recorder, and its recordings."""

    def __init__(self, device: torch.device) -> None:
        pass

    def record(self, compute: Callable[[], None]) -> "_Nothing":
        compute()
        return self

    def replay(self) -> None:
        pass


@contextmanager
def idle_device() -> Iterator[None]:
    """Give new engines on a CPU the path of a GPU, and no forward pass."""

    def forward(runner: ModelRunner, batch: StepBatch) -> Hidden:
        return Hidden(torch.zeros(len(batch.token_ids), MODEL.hidden))

    with ExitStack() as patches:
        patches.enter_context(patch.object(choose_backend, "BACKENDS", (TritonBackend(device_type="cpu"),)))
        patches.enter_context(patch.object(inputs, "step_memory", DeviceMemory))
        patches.enter_context(patch("kvasir.worker.worker.CudaRecorder", _Nothing))
        patches.enter_context(patch.object(ModelRunner, "_forward", forward))
        yield


def start(folder: str, most: int) -> tuple[EngineCore, InProcessExecutor]:
    """Return an engine for up to `most` requests, and its executor. The caller closes both."""
    MODEL.write_config(Path(folder), "float32")
    config = engine_config(folder, device="cpu", cache_bytes=most * 2**20, max_model_len=CONTEXT, max_num_seqs=most)
    model = read_model(config.model)
    sizes = tuple(2**power for power in range(most.bit_length()) if 2**power < most)
    settings = replace(resolve_settings(config, model), async_scheduling=True, graph_sizes=(*sizes, most))
    executor = InProcessExecutor(settings, model, launches=True)
    executor.start(lambda done, total: None, lambda error: None)
    settings, cache = prepare_workers(executor, settings, asked=CONTEXT)
    return build_core(settings, model, cache, executor), executor


def step_times(core: EngineCore, requests: int, steps: int) -> list[float]:
    """Return the seconds of each step in which so many requests decode a token."""
    for number in range(requests):
        params = SamplingParams(max_tokens=CONTEXT - 32, seed=number, temperature=0.0, ignore_eos=True)
        core.add(FRONTEND, AddRequest(str(number), 0, packed([2 + number % 100] * 16), b"", params))
    while core.scheduler.waiting:
        core.step()
    for _ in range(LEAD_STEPS):
        core.step()
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        outputs = core.step()
        times.append(time.perf_counter() - began)
        assert len(outputs[FRONTEND].outputs) == requests, "a step did not decode a token for each request"
    core.abort(FRONTEND, [str(number) for number in range(requests)])
    while core.has_work:
        core.step()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", default="1,32,256", help="numbers of requests (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="of each number (default: %(default)s)")
    options = parser.parse_args()
    if options.steps > MOST_STEPS:
        parser.error(f"--steps {options.steps} is more than the {MOST_STEPS} tokens that a request can get")
    numbers = [int(each) for each in options.requests.split(",")]
    torch.set_num_threads(1)
    print(f"{cpu_name()}; microseconds of the host in a decode step")
    print(f"{'requests':>8} {'median':>8} {'p90':>8}")
    with idle_device(), tempfile.TemporaryDirectory() as folder:
        core, executor = start(folder, max(numbers))
        try:
            for number in numbers:
                times = step_times(core, number, options.steps)
                deciles = statistics.quantiles(times, n=10)
                print(f"{number:>8} {statistics.median(times) * 1e6:>8.0f} {deciles[-1] * 1e6:>8.0f}", flush=True)
        finally:
            core.close()
            executor.shutdown()


if __name__ == "__main__":
    main()
