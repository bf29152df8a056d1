"""The messages between an engine and a worker process, except steps.

The engine sends a WorkerSetup; the worker sends Loading until Loaded, and a WorkerError before it ends of one.
"""

import dataclasses
import logging
import zlib
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.shared_memory.channel import MAX_UNANSWERED_FRAMES, WorkerHandle
from kvasir.hub.model_info import ModelInfo
from kvasir.parallel.tcp_rendezvous import TcpRendezvous
from kvasir.worker.step import StepInput, StepOutput
from kvasir_contract.reasons import Reason

MAX_PACKET_BYTES: Final = 2**20
CHECKSUM_BYTES: Final = 4  # at the start of the reply to a step


class FrameKind(IntEnum):
    """The first byte of a frame; the rest is msgpack."""

    STEP = 0  # a StepInput; see `step_reply`
    COMMAND = 1  # a WorkerCall whose error ends the worker; replies its value
    CALL = 2  # any other WorkerCall; replies a WorkerResult
    LATE_INPUT = 3  # a LateInput, for a worker that samples; no reply


class WorkerPhase(IntEnum):
    START = 1
    LOAD = 2
    IDLE = 3
    PREFILL = 4
    DECODE = 5
    MEASURE_MEMORY = 6
    ALLOCATE_MEMORY = 7
    WARM_UP = 8
    CALL = 9
    JOIN = 10

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


_OF_COMMANDS: Final = {
    "kv_layout": WorkerPhase.MEASURE_MEMORY,
    "allocate_kv_cache": WorkerPhase.ALLOCATE_MEMORY,
    "warm_up": WorkerPhase.WARM_UP,
    "work_ahead": WorkerPhase.IDLE,
    "check_idle": WorkerPhase.IDLE,
}


def phase_of_call(method: str) -> WorkerPhase:
    return _OF_COMMANDS.get(method, WorkerPhase.CALL)


def phase_of_step(step: StepInput) -> WorkerPhase:
    for row in step.scheduled:
        if row.num_new_tokens > 1:
            return WorkerPhase.PREFILL
    return WorkerPhase.DECODE


class WorkerSetup(msgspec.Struct, frozen=True):
    rank: int
    handle: WorkerHandle
    settings: ResolvedEngine
    model: ModelInfo
    engine_pid: int
    stack_descriptor: int  # on SIGUSR1 the worker writes its main thread's stack here
    rendezvous: int | TcpRendezvous | None  # int: the file's descriptor
    log_name: str
    log_level: str
    log_format: str


class Loading(msgspec.Struct, frozen=True, tag=True):
    done: int
    total: int


class Loaded(msgspec.Struct, frozen=True, tag=True):
    weights: str  # identity of the weights on its node


class WorkerError(msgspec.Struct, frozen=True, tag=True):
    """The worker ends because of this; its log has the traceback."""

    reason: Reason
    message: str
    phase: str


FromWorker = Loading | Loaded | WorkerError


def encode(message: WorkerSetup | FromWorker) -> bytes:
    return msgspec.msgpack.encode(message, enc_hook=_to_text)


def decode_setup(packet: bytes) -> WorkerSetup:
    return msgspec.msgpack.decode(packet, type=WorkerSetup, dec_hook=_from_text)


def decode_from_worker(packet: bytes) -> FromWorker:
    message: FromWorker = msgspec.msgpack.decode(packet, type=FromWorker)
    return message


def reporting_rank(config: ExecutorConfig) -> int:
    """Return the rank whose outputs reach the engine: the first of the last stage."""
    return config.num_workers - config.tensor_parallel_size


def step_reply(output: StepOutput, reports: bool, encode: Callable[[Any], bytes]) -> bytes:
    """Return a checksum of the worker's tokens and, if it reports, its output.

    With one different token, workers would go on with different texts: the engine compares.
    """
    checksum = zlib.crc32(encode(output.token_ids)).to_bytes(CHECKSUM_BYTES)
    return checksum + encode(output) if reports else checksum


def name_of_worker(rank: int, config: ExecutorConfig) -> str:
    if config.pipeline_parallel_size == 1:
        return f"worker {rank}"
    stage, place = divmod(rank, config.tensor_parallel_size)
    tensor_rank = f", tensor rank {place}" if config.tensor_parallel_size > 1 else ""
    return f"worker {rank} (stage {stage}{tensor_rank})"


def steps_in_flight(settings: ResolvedEngine) -> int:
    # one per pipeline stage
    stages = settings.executor.pipeline_parallel_size
    if stages > 1:
        return min(stages, MAX_UNANSWERED_FRAMES)
    return 2 if settings.async_scheduling else 1


def settings_of_worker(settings: ResolvedEngine, num_workers: int) -> ResolvedEngine:
    threads = max(1, settings.threads // num_workers)
    return dataclasses.replace(
        settings,
        threads=threads,
        yield_threads=settings.yield_threads and num_workers == 1,
        data_parallel_size_local=settings.data_parallel_size_local * num_workers,
    )


def device_of_worker(device: str, place: int) -> str:
    # each worker has its own GPU
    return f"{device}:{place}" if device == "cuda" else device


def current_log_level() -> str:
    level = logging.getLogger().level
    return next((name for name in ("debug", "info", "warning") if level <= getattr(logging, name.upper())), "error")


def _to_text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in msgpack")


def _from_text(kind: type, value: Any) -> Any:
    if issubclass(kind, Path):
        return Path(value)
    raise TypeError(f"{kind.__name__} has no form in msgpack")
