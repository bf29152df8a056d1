"""An engine in this process that is driven step by step, and the time of its thread in a step."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from bench.gpu.shapes import ModelShape

from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from kvasir.engine.build import build_core, prepare_workers, resolve_settings
from kvasir.engine.core import EngineCore
from kvasir.executor.executor import Executor, SubmittedStep
from kvasir.executor.executor_for import executor_for
from kvasir.hub.located_model import read_model
from kvasir.hub.model_info import ModelInfo
from kvasir.link.protocol import AddRequest
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.step import StepInput, StepOutput

# Stands for the name of a frontend.
_HERE: Final = "bench"


def engine_config(
    folder: str,
    *,
    device: str,
    cache_bytes: int | None,
    max_model_len: int,
    load_format: str = "dummy",
    is_eager: bool = False,
    threads: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(folder, max_model_len=max_model_len),
        device=DeviceConfig(device=device, load_format=load_format, threads=threads, enforce_eager=is_eager),
        cache=CacheConfig(kv_cache_memory_bytes=cache_bytes),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
    )


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each part of a step."""

    whole: float
    # In the worker: inputs, and launches of kernels. On a CPU, the whole computation.
    submitting: float
    # For tokens of the device.
    waiting: float
    # Ids of all requests that came with this step.
    tokens: int


@dataclass
class TimedExecutor:
    """Forwards calls to an executor, and measures those of steps."""

    executor: Executor
    submitting: float = 0.0
    waiting: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def submit(self, step: StepInput) -> SubmittedStep:
        began = time.perf_counter()
        submitted = self.executor.submit(step)
        self.submitting += time.perf_counter() - began
        return _TimedStep(submitted, self)


@dataclass(frozen=True)
class _TimedStep:
    step: SubmittedStep
    times: TimedExecutor

    def done(self) -> bool:
        return self.step.done()

    def result(self) -> StepOutput:
        began = time.perf_counter()
        output = self.step.result()
        self.times.waiting += time.perf_counter() - began
        return output


@dataclass
class Engine:
    """Made by `start`. Close it in the end."""

    core: EngineCore
    executor: TimedExecutor
    # Output by request.
    tokens: dict[str, list[int]] = field(default_factory=dict)
    # Of the tokens, if requested.
    logprobs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        self.tokens[request_id], self.logprobs[request_id] = [], []
        self.core.add(_HERE, AddRequest(request_id, 0, packed(prompt), b"", params))

    def step(self) -> StepTimes:
        # Raises RuntimeError if a request fails.
        submitting, waiting, tokens = self.executor.submitting, self.executor.waiting, 0
        began = time.perf_counter()
        outputs = self.core.step()
        whole = time.perf_counter() - began
        for output in outputs[_HERE].outputs if outputs else ():
            if output.error:
                raise RuntimeError(f"request {output.request_id} failed: {output.error}")
            tokens += len(output.token_ids)
            self.tokens[output.request_id] += output.token_ids
            if output.logprobs is not None:
                self.logprobs[output.request_id] += output.logprobs.token
        return StepTimes(whole, self.executor.submitting - submitting, self.executor.waiting - waiting, tokens)

    def finish(self) -> list[StepTimes]:
        # Until all requests have ended.
        steps = []
        while self.core.has_work:
            steps.append(self.step())
        return steps

    def abort(self) -> None:
        self.core.abort(_HERE, list(self.tokens))
        self.tokens.clear()
        self.logprobs.clear()
        while self.core.has_work:
            self.core.step()

    def close(self) -> None:
        self.core.close()
        self.executor.shutdown()


def start(
    config: EngineConfig,
    settings_of: Callable[[EngineConfig, ModelInfo], ResolvedEngine] = resolve_settings,
    executor_of: Callable[[ResolvedEngine, ModelInfo], Executor] = executor_for,
) -> Engine:
    """Start an engine (`local_engine.start_engine`) with a timed executor and without progress bars."""
    model = read_model(config.model)
    settings = settings_of(config, model)
    timed = TimedExecutor(executor_of(settings, model))
    executor = cast(Executor, timed)
    try:
        executor.start(lambda done, total: None, lambda error: None)
        settings, cache = prepare_workers(executor, settings, asked=config.model.max_model_len)
        return Engine(build_core(settings, model, cache, executor), timed)
    except BaseException:
        executor.shutdown()
        raise


@contextmanager
def random_engine(
    shape: ModelShape, device: str, cache_bytes: int, max_model_len: int, **more: Any
) -> Iterator[Engine]:
    """Start an engine with random weights, and close it behind the block. `more`: of engine_config."""
    with tempfile.TemporaryDirectory() as folder:
        shape.write_config(Path(folder), "bfloat16")
        config = engine_config(folder, device=device, cache_bytes=cache_bytes, max_model_len=max_model_len, **more)
        engine = start(config)
    try:
        yield engine
    finally:
        engine.close()


def greedy(max_tokens: int, logprobs: int | None = None) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True, logprobs=logprobs)
