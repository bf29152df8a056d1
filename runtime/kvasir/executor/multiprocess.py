"""Every worker in a process of its own, connected by shared memory.

All workers get the same frames and reply to each. They live and die together: if one ends, raises or hangs, the
others are killed at once, because they may wait for it in a collective operation. The engine then reports the first
failure with rank and phase. There is no recovery of a part of the workers: the engine ends and is started again.
"""

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import msgspec

from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.rendezvous import rendezvous_of
from kvasir.executor.shared_memory.channel import EngineChannel
from kvasir.executor.shared_memory.replies import NoReplyError
from kvasir.executor.shared_memory.ring import RingError, SlowReaderError
from kvasir.executor.shared_memory.segment import SharedMemoryError
from kvasir.executor.started_worker import RunningWorker, StartedWorker, wait_for_end
from kvasir.executor.worker_messages import (
    FrameKind,
    FromWorker,
    Loading,
    WorkerError,
    WorkerSetup,
    current_log_level,
    reporting_rank,
    settings_of_worker,
    steps_in_flight,
)
from kvasir.executor.worker_states import WorkerStates
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.kv import KVCacheConfig
from kvasir.observability.failures import FailureError, error_of
from kvasir.worker.step import StepInput, StepOutput
from kvasir.worker.worker_calls import WorkerCall, WorkerResult
from kvasir_contract.failure import Failure
from kvasir_contract.logs import current_format
from kvasir_contract.reasons import Reason

log = logging.getLogger(__name__)

_END_SECONDS: Final = 1.0
"""How long workers may take to end by themselves, and how long the report of an end may take."""
_STEP, _COMMAND, _CALL = (bytes((kind,)) for kind in FrameKind)


class MultiprocessExecutor:
    """An Executor. One thread uses it, the one that created it; `shutdown` and `where` may come from others."""

    def __init__(
        self,
        settings: ResolvedEngine,
        model: ModelInfo,
        num_workers: int | None = None,
        start_worker: Callable[[WorkerSetup, int], RunningWorker] = StartedWorker,
    ) -> None:
        """By default each worker is a rank of a split model. With `num_workers`, all compute the whole model."""
        self._start_worker = start_worker
        num_workers = num_workers or settings.executor.num_workers
        self.max_in_flight = steps_in_flight(settings)
        self._settings = settings_of_worker(settings, num_workers)
        self._model = model
        self._num_workers = num_workers
        self._reporting_rank = reporting_rank(settings.executor)
        self._timeout = settings.executor.worker_timeout
        self._workers: list[RunningWorker] = []
        self._channel: EngineChannel | None = None
        self._states = WorkerStates(settings.executor, self._workers, [])
        self._pending: deque[_Reply] = deque()
        self._news: queue.SimpleQueue[tuple[int, FromWorker] | None] = queue.SimpleQueue()
        """Of the start-up; None: a worker has ended."""
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._has_failed = threading.Event()
        self._failed: Callable[[Exception], None] | None = None
        """Set when `start` is over; before, `start` itself raises the error."""
        self._closed = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._outputs = msgspec.msgpack.Decoder(StepOutput)

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        try:
            channel = self._channel = EngineChannel(self._num_workers)
        except SharedMemoryError as error:
            raise FailureError(Failure(Reason.OUT_OF_MEMORY, str(error))) from error
        self._states = WorkerStates(self._settings.executor, self._workers, channel.progress)
        with rendezvous_of(self._settings.executor.num_workers) as rendezvous:
            for rank in range(self._num_workers):
                setup = self._setup(rank, channel, rendezvous)
                self._workers.append(self._start_worker(setup, self._settings.threads))
        channel.close_handles()
        for worker in self._workers:
            worker.watch(self._on_message, self._on_end, self._on_stop, self._timeout)
        self._wait_until_loaded(progress)
        with self._lock:
            self._failed = failed
        self._check()

    def kv_layout(self) -> KVCacheConfig:
        layouts = [
            msgspec.convert(layout, KVCacheConfig) for layout in self._command(WorkerCall("kv_layout"), None)
        ]
        return min(layouts, key=lambda layout: layout.num_blocks)

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        arguments = {"num_blocks": num_blocks, "max_model_len": max_model_len}
        self._command(WorkerCall.of("allocate_kv_cache", **arguments), None)

    def warm_up(self) -> None:
        self._command(WorkerCall("warm_up"), None)

    def submit(self, step: StepInput) -> Future[StepOutput]:
        self._write(_STEP + self._encode(step))
        reply = _Reply(self._take_oldest)
        self._pending.append(reply)
        return reply

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        replies = self._exchange(_CALL + self._encode(call), None)
        return [msgspec.msgpack.decode(reply, type=WorkerResult) for reply in replies]

    def work_ahead(self) -> bool:
        return any(self._command(WorkerCall("work_ahead"), self._timeout))

    def check_idle(self) -> None:
        self._command(WorkerCall("check_idle"), self._timeout)

    def where(self) -> str:
        """Return phase and place of each worker."""
        return self._states.describe(range(len(self._workers)))

    @property
    def pids(self) -> list[int]:
        """The worker processes by rank."""
        return [worker.pid for worker in self._workers]

    def shutdown(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for worker in self._workers:
            worker.dismiss()
        if self._channel is not None:
            self._channel.interrupt()
        if not wait_for_end(self._workers, _END_SECONDS):
            for worker in self._workers:
                worker.kill()
        if wait_for_end(self._workers, _END_SECONDS):
            for worker in self._workers:
                worker.close()
        if self._channel is not None:
            self._channel.close()

    # ---------------------------------------------------------------------------------------------- the start-up

    def _setup(self, rank: int, channel: EngineChannel, rendezvous: int | None) -> WorkerSetup:
        return WorkerSetup(
            rank=rank,
            handle=channel.handle(rank),
            settings=self._settings,
            model=self._model,
            engine_pid=os.getpid(),
            stack_descriptor=-1,
            rendezvous=rendezvous,
            log_name=f"engine-{self._settings.data_parallel_rank}-worker-{rank}",
            log_level=current_log_level(),
            log_format=current_format(),
        )

    def _wait_until_loaded(self, progress: Callable[[int, int], None]) -> None:
        """Pass on the sums of what the workers have loaded until all are done."""
        loading: dict[int, Loading] = {}
        missing = set(range(self._num_workers))
        while missing:
            news = self._news.get()
            self._check()
            if news is None:
                continue
            rank, message = news
            if isinstance(message, Loading):
                loading[rank] = message
                progress(sum(each.done for each in loading.values()), sum(each.total for each in loading.values()))
            else:
                missing.discard(rank)

    # -------------------------------------------------------------------------------- frames and their replies

    def _command(self, call: WorkerCall, seconds: float | None) -> list[Any]:
        """Run a call that must succeed on every worker. None: no timeout (memory may be large, kernels compile)."""
        return [msgspec.msgpack.decode(reply) for reply in self._exchange(_COMMAND + self._encode(call), seconds)]

    def _exchange(self, frame: bytes, seconds: float | None) -> list[bytes]:
        while self._pending:
            self._take_oldest()
        self._write(frame)
        return self._read(seconds)

    def _take_oldest(self) -> None:
        """Receive the replies to the oldest step."""
        replies = self._read(self._timeout)
        self._pending.popleft().set_result(self._outputs.decode(replies[self._reporting_rank]))

    def _write(self, frame: bytes) -> None:
        channel = self._running()
        try:
            channel.requests.write(frame, self._timeout)
        except SlowReaderError as error:
            self._hung([error.rank or 0])
            raise self._failure() from error
        except RingError as error:
            raise self._failure() from error

    def _read(self, seconds: float | None) -> list[bytes]:
        channel = self._running()
        try:
            return channel.replies.read(seconds)
        except NoReplyError as error:
            self._hung(error.ranks)
            raise self._failure() from error
        except RingError as error:
            raise self._failure() from error

    def _running(self) -> EngineChannel:
        self._check()
        assert self._channel is not None, "the executor was not started"
        assert not self._closed, "the executor was shut down"
        return self._channel

    # ------------------------------------------------------------------------------------------------- failures

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _failure(self) -> Exception:
        """Return the failure that has interrupted the ring: its report may take a moment longer."""
        self._has_failed.wait(_END_SECONDS)
        return self._error or FailureError(Failure(Reason.CRASH_LOOPING, "a worker closed its connection"))

    def _on_message(self, rank: int, message: FromWorker) -> None:
        self._news.put((rank, message))

    def _on_end(self, rank: int, how: str, error: WorkerError | None) -> None:
        states = self._states
        if error is not None:
            failure = Failure(error.reason, error.message)
            self._fail(failure, f"{states.name(rank)} failed in phase {error.phase}")
            return
        text = f"{states.name(rank)} {how} in {states.phase_of(rank)}"
        self._fail(Failure(Reason.CRASH_LOOPING, text), text)

    def _on_stop(self, rank: int) -> None:
        states = self._states
        text = f"{states.name(rank)} has been stopped for {self._timeout:g} s in {states.phase_of(rank)}"
        self._fail(Failure(Reason.CRASH_LOOPING, text), text)

    def _hung(self, ranks: Sequence[int]) -> None:
        text = f"no reply to a step within {self._timeout:g} s: {self._states.describe(ranks)}"
        self._fail(Failure(Reason.CRASH_LOOPING, text), text)

    def _fail(self, failure: Failure, text: str) -> None:
        """Kill all workers and report the failure, if it is the first one. Any thread."""
        with self._lock:
            if self._closed or self._error is not None:
                return
            error = self._error = error_of(failure)
            failed = self._failed
        self._has_failed.set()
        for worker in self._workers:
            worker.kill()
        log.error("%s; all workers are killed", text)
        if self._channel is not None:
            self._channel.interrupt()
        self._news.put(None)
        if failed is not None:
            failed(error)


class _Reply(Future[StepOutput]):
    """A step's output, which the thread that waits for it receives: another thread would cost a switch per step."""

    def __init__(self, receive: Callable[[], None]) -> None:
        super().__init__()
        self._receive = receive

    def result(self, timeout: float | None = None) -> StepOutput:
        """Wait for this step and those before it. The executor's own timeout counts."""
        while not self.done():
            self._receive()
        return super().result()
