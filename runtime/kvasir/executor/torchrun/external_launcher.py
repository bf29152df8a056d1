"""One worker in each of several processes that torchrun has started, each with a whole engine.

All engines get the same requests, and a scheduler without clocks makes the same steps. Before each step the ranks
compare a checksum of everything so far, so processes at different steps fail at once.
"""

import atexit
import dataclasses
import os
import secrets
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import msgspec
import torch
import torch.distributed as dist

from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.executor import SubmittedStep
from kvasir.executor.in_process import InProcessExecutor
from kvasir.executor.torchrun.launched_rank import LaunchedRank
from kvasir.executor.torchrun.load_exchange import LoadExchange
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.kv import KVCacheConfig
from kvasir.parallel.gloo import INTERFACE, register_gloo
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.parallel.start import leave
from kvasir.parallel.torch_group import TorchGroup
from kvasir.process.failures import FailureError
from kvasir.worker.split_refusal import check_split
from kvasir.worker.step import LateInput, StepInput, StepOutput
from kvasir.worker.worker_calls import WorkerCall, WorkerResult
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason

_OF_MACHINE: Final = ("threads", "yield_threads")  # may differ between the ranks


class ExternalLauncherExecutor:
    def __init__(self, settings: ResolvedEngine, model: ModelInfo) -> None:
        """Raises ConfigError if torchrun has not started this process."""
        self.max_in_flight = 2 if settings.async_scheduling else 1
        self.seed = 0  # random, the same on all ranks; set by `start`
        self._launched = LaunchedRank.of(settings.executor)
        self._settings = settings
        self._model = model
        self._inner: InProcessExecutor | None = None
        self._ranks = _Ranks()

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        # The next step notices a lost rank: no call of `failed`. Each rank checks the split itself.
        check_split(self._model, self._settings.max_model_len, self._settings.executor)
        tensor: TorchGroup | None = None
        if self._launched.size > 1:
            limit = timedelta(seconds=self._settings.executor.worker_timeout)
            model_group, own_group = _join(self._launched, limit)
            tensor, self._ranks = TorchGroup(model_group), _Ranks(own_group, limit)
        self.seed = self._ranks.from_first(secrets.randbits(63))
        self._ranks.compare_settings(self._settings, self._model)
        parallel = SINGLE
        if tensor is not None:
            parallel = ParallelState(tensor, expert_parallel=self._settings.executor.enable_expert_parallel)
        settings = _of_process(self._settings, self._launched)
        self._inner = InProcessExecutor(settings, self._model, parallel)
        with self._ranks.loading():
            self._inner.start(progress, failed)

    def kv_layout(self) -> KVCacheConfig:
        layout = self._running.kv_layout()
        return KVCacheConfig(layout.groups, min(self._ranks.gather(layout.num_blocks)))

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        self._running.allocate_kv_cache(num_blocks, max_model_len)

    def warm_up(self) -> None:
        self._running.warm_up()

    def submit(self, step: StepInput) -> SubmittedStep:
        self._ranks.compare_step(step)
        with self._ranks.named_failures():
            return _Compared(self._running.submit(step), self._ranks)

    def supply(self, late: LateInput) -> None:
        # Each rank makes the same masks.
        self._running.supply(late)

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        """Return only this process's result. Each process must make the call."""
        return self._running.call(call)

    def work_ahead(self) -> bool:
        return self._running.work_ahead()

    def check_idle(self) -> None:
        self._running.check_idle()

    def block_bytes(self) -> None:
        """Return None: this process may have only a part of each block."""

    def where(self) -> str:
        return ""

    def shutdown(self) -> None:
        # Keep the default process group: torch cannot make it twice.
        if self._inner is not None:
            self._inner.shutdown()

    @property
    def _running(self) -> InProcessExecutor:
        assert self._inner is not None, "the executor was not started"
        return self._inner


class _Compared:
    def __init__(self, step: SubmittedStep, ranks: "_Ranks") -> None:
        self._step = step
        self._ranks = ranks
        self.done = step.done

    def result(self) -> StepOutput:
        with self._ranks.named_failures():
            output = self._step.result()
        self._ranks.note(output)
        return output


class _Ranks:
    """The exchanges of the ranks, without tensors of the model. One rank has no group."""

    def __init__(self, group: dist.ProcessGroup | None = None, limit: timedelta = timedelta()) -> None:
        self._group = group
        self._limit = limit
        self._rank = 0 if group is None else group.rank()
        self._size = 1 if group is None else group.size()
        self._encode = msgspec.msgpack.Encoder().encode
        self._checksum = 0  # of all steps and their tokens
        self._mine = torch.zeros(1, dtype=torch.int64)
        self._parts = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        self._error: FailureError | None = None

    def gather(self, value: int) -> list[int]:
        if self._group is None:
            return [value]
        self._mine[0] = value
        try:
            dist.all_gather(self._parts, self._mine, group=self._group)
        except RuntimeError as error:
            raise self.failure(
                f"waited up to {self._limit.total_seconds():g} s for the other processes, which must make the same "
                f"calls (--worker-timeout), or one of them has ended: {_first_line(error)}"
            ) from error
        return [int(part) for part in self._parts]

    def from_first(self, value: int) -> int:
        return self.gather(value)[0]

    @contextmanager
    def loading(self) -> Iterator[None]:
        # Raises FailureError if another rank could not load.
        if self._group is None:
            yield
            return
        exchange = LoadExchange(self.gather)
        try:
            yield
            failed = exchange.finish()
        except BaseException:
            exchange.fail()
            raise
        if failed:
            raise self.failure(f"rank {failed[0]} could not load the model: its output has the reason")

    def compare_settings(self, settings: ResolvedEngine, model: ModelInfo) -> None:
        """Raises ConfigError, with the name of one, if settings or models differ."""
        facts = {field.name: str(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
        facts = {name: value for name, value in facts.items() if name not in _OF_MACHINE}
        facts["model"] = model.fingerprint
        for name, value in facts.items():
            others = self.gather(zlib.crc32(value.encode()))
            different = [rank for rank, other in enumerate(others) if other != others[0]]
            if different:
                raise ConfigError(
                    f"{name} differs between rank 0 and rank {different[0]} (on rank {self._rank} it is {value}): "
                    "start every process with the same options and the same model"
                )

    def compare_step(self, step: StepInput) -> None:
        """Raises FailureError if another rank is at another step, or has ended."""
        if self._group is None:
            return
        if self._error is not None:
            raise self._error
        self._checksum = zlib.crc32(self._encode(step), self._checksum)
        others = self.gather(self._checksum)
        if any(other != self._checksum for other in others):
            raise self.failure(
                f"the processes are at different steps (here step {step.number}): give each the same requests in "
                "the same order; after Ctrl-C or an error in one of them, start all again"
            )

    def note(self, output: StepOutput) -> None:
        if self._group is not None:
            self._checksum = zlib.crc32(self._encode(output.token_ids), self._checksum)

    @contextmanager
    def named_failures(self) -> Iterator[None]:
        # The error may be a broken connection.
        try:
            yield
        except RuntimeError as error:
            raise self.failure(f"a step failed: {_first_line(error)}") from error

    def failure(self, text: str) -> FailureError:
        # every later step raises it too
        if self._error is None:
            self._error = FailureError(Failure(Reason.CRASH_LOOPING, f"rank {self._rank}: {text}"))
        return self._error


def _join(launched: LaunchedRank, limit: timedelta) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    if launched.local_size == launched.size:
        os.environ.setdefault(INTERFACE, "lo")
    try:
        if not dist.is_initialized():
            dist.init_process_group(register_gloo(), init_method="env://", timeout=limit)
            atexit.register(leave)  # later gloo's threads would abort the process
        if dist.get_world_size() != launched.size:
            raise ConfigError(
                f"torch.distributed has {dist.get_world_size()} ranks in this process, and WORLD_SIZE is "
                f"{launched.size}: initialise it with all processes, or leave it to Kvasir"
            )
        return _new_group(limit), _new_group(limit)
    except RuntimeError as error:
        text = (
            f"rank {launched.rank} could not connect to the other processes at {launched.address} within "
            f"{limit.total_seconds():g} s (--worker-timeout): {_first_line(error)}; start all {launched.size} with "
            "torchrun"
        )
        raise FailureError(Failure(Reason.CRASH_LOOPING, text)) from error


def _new_group(limit: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(timeout=limit, backend=register_gloo())
    assert isinstance(group, dist.ProcessGroup)
    return group


def _of_process(settings: ResolvedEngine, launched: LaunchedRank) -> ResolvedEngine:
    threads = settings.threads
    if settings.yield_threads and launched.local_size > 1:  # not given by the user
        threads = max(1, threads // launched.local_size)
    return dataclasses.replace(
        settings,
        threads=threads,
        yield_threads=settings.yield_threads and launched.local_size == 1,
        data_parallel_size_local=settings.data_parallel_size_local * launched.local_size,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
