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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

import torch
from bench.gpu.engines import Engine, engine_config, greedy, start
from bench.gpu.shapes import QWEN3_06B, tiny

from kvasir.config.hardware.machine import cpu_name
from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import EngineConfig
from kvasir.engine.build import resolve_settings
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.layers.step_memory import DeviceMemory
from kvasir.models.forward_batch import Hidden
from kvasir.worker.batch import inputs
from kvasir.worker.batch.inputs import StepBatch
from kvasir.worker.model_runner import ModelRunner

CONTEXT: Final = 2048
PROMPT: Final = 16
MODEL: Final = replace(tiny(QWEN3_06B), context=CONTEXT)
# Before the measurement.
LEAD_STEPS: Final = 50
# No request ends before.
MAX_STEPS: Final = CONTEXT - PROMPT - 2 * LEAD_STEPS


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


def settings_of(config: EngineConfig, model: ModelInfo) -> ResolvedEngine:
    # As on a GPU: overlapped steps, and graphs of each power of 2 and of the most requests.
    settings = resolve_settings(config, model)
    most = settings.max_num_seqs
    sizes = tuple(2**power for power in range(most.bit_length()) if 2**power < most)
    return replace(settings, async_scheduling=True, graph_sizes=(*sizes, most))


def start_engine(folder: str, most: int) -> Engine:
    """Return an engine for up to `most` requests. The caller closes it."""
    MODEL.write_config(Path(folder), "float32")
    config = engine_config(folder, device="cpu", cache_bytes=most * 2**20, max_model_len=CONTEXT, max_num_seqs=most)
    return start(config, settings_of, partial(InProcessExecutor, launches=True))


def step_times(engine: Engine, requests: int, steps: int) -> list[float]:
    # Seconds of steps in which so many requests decode a token.
    for number in range(requests):
        engine.add(str(number), [2 + number % 100] * PROMPT, greedy(CONTEXT - PROMPT))
    while not all(engine.tokens.values()):
        engine.step()
    for _ in range(LEAD_STEPS):
        engine.step()
    taken = [engine.step() for _ in range(steps)]
    engine.abort()
    assert all(step.tokens == requests for step in taken), "a step did not decode a token for each request"
    return [step.whole for step in taken]


def requests_of(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(each.isdigit() and int(each) for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers above 0, such as 1,32")
    return [int(each) for each in numbers]


def steps_of(text: str) -> int:
    if not (text.isdigit() and 2 <= int(text) <= MAX_STEPS):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 2 to {MAX_STEPS}")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=requests_of, default="1,32,256", help="default: %(default)s")
    parser.add_argument("--steps", type=steps_of, default=400, help="of each number (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{cpu_name()}; microseconds of the host in a decode step")
    print(f"{'requests':>8} {'median':>8} {'p90':>8}")
    with idle_device(), tempfile.TemporaryDirectory() as folder:
        engine = start_engine(folder, max(options.requests))
        try:
            for number in options.requests:
                times = step_times(engine, number, options.steps)
                deciles = statistics.quantiles(times, n=10)
                print(f"{number:>8} {statistics.median(times) * 1e6:>8.0f} {deciles[-1] * 1e6:>8.0f}", flush=True)
        finally:
            engine.close()


if __name__ == "__main__":
    main()
