"""Every worker in a process of its own, connected by shared memory.

All workers get the same frames. If one ends, raises or hangs, the others are killed at once: they may wait for it
in a collective operation.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.processes.local_workers import LocalWorkers
from kvasir.executor.processes.rendezvous import rendezvous_of
from kvasir.executor.processes.started_worker import StartedWorker, StartWorker
from kvasir.executor.processes.worker_messages import (
    CHECKSUM_BYTES,
    FrameKind,
    FromWorker,
    Loaded,
    Loading,
    name_of_worker,
    reporting_rank,
    steps_in_flight,
)
from kvasir.executor.remote_workers import RemoteInterruptedError, RemoteSilentError, RemoteWorkers
from kvasir.executor.shared_memory.channel import EngineChannel, NoReplyError
from kvasir.executor.shared_memory.ring import RingError, SlowReaderError
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.kv import KVCacheConfig
from kvasir.parallel.tcp_rendezvous import TcpRendezvous
from kvasir.process.failures import FailureError, error_of
from kvasir.worker.step import LateInput, StepInput, StepOutput
from kvasir.worker.worker_calls import WorkerCall, WorkerResult
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason

log = logging.getLogger(__name__)

_REPORT_SECONDS: Final = 1.0
# An error waits so long for the report of a cause on another node. Below _REPORT_SECONDS.
_CAUSE_SECONDS: Final = 0.5
_STEP, _COMMAND, _CALL, _LATE_INPUT = (bytes((kind,)) for kind in FrameKind)


class MultiprocessExecutor:
    """Used by the thread that created it; any thread may call `shutdown` and `where`."""

    def __init__(
        self,
        settings: ResolvedEngine,
        model: ModelInfo,
        num_workers: int | None = None,
        remote: RemoteWorkers | None = None,
        start_worker: StartWorker = StartedWorker,
    ) -> None:
        """Each worker is a rank of a split model. With `num_workers`, each computes the whole model. The ranks are
        spread evenly over the nodes of `remote`.
        """
        self._num_workers = num_workers or settings.executor.num_workers
        self.max_in_flight = steps_in_flight(settings)
        self._settings = settings
        self._remote = remote
        ranks = range(self._num_workers // (1 if remote is None else remote.num_nodes))
        self._local = LocalWorkers(ranks, settings, model, self.worker_news, self.worker_failed, start_worker)
        self._weights = model.weights
        self._reporting_rank = reporting_rank(settings.executor)
        self._timeout = settings.executor.worker_timeout
        self._pending: deque[_Reply] = deque()
        self._unsupplied: dict[int, _Reply] = {}  # by step
        # of the start-up; None: a worker has ended
        self._news: queue.SimpleQueue[tuple[int, FromWorker] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._reason = "the engine ends"  # why the other nodes are dismissed
        self._has_failed = threading.Event()
        # set after `start`, which raises errors itself
        self._failed: Callable[[Exception], None] | None = None
        self._closed = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._outputs = msgspec.msgpack.Decoder(StepOutput)

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        with self._rendezvous() as rendezvous:
            self._local.start(rendezvous)
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
        if step.masked:
            self._unsupplied[step.number] = reply
            reply.awaits_masks = True
        return reply

    def supply(self, late: LateInput) -> None:
        self._unsupplied.pop(late.number).awaits_masks = False
        self._write(_LATE_INPUT + self._encode(late))

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        replies = self._exchange(_CALL, call, None)
        return [msgspec.msgpack.decode(reply, type=WorkerResult) for reply in replies]

    def work_ahead(self) -> bool:
        return any(self._command(WorkerCall("work_ahead"), self._timeout))

    def check_idle(self) -> None:
        self._command(WorkerCall("check_idle"), self._timeout)

    def block_bytes(self) -> None:
        """Return None: each worker has only a part of each block."""

    def where(self) -> str:
        return self._describe(range(self._num_workers))

    @property
    def pids(self) -> list[int]:
        return self._local.pids

    def shutdown(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._remote is not None:
            self._remote.dismiss(self._reason)
        self._local.shutdown()

    # ---------------------------------------------------------------------------------------------- the start-up

    def _rendezvous(self) -> AbstractContextManager[int | TcpRendezvous | None]:
        if self._remote is None:
            return rendezvous_of(self._settings.executor.num_workers)
        return self._remote.begin(self._settings, len(self._local.ranks), self)

    def _wait_until_loaded(self, progress: Callable[[int, int], None]) -> None:
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
            elif isinstance(message, Loaded):
                if message.weights != self._weights:
                    self._other_weights(rank)
                    raise self._failure()
                missing.discard(rank)

    # -------------------------------------------------------------------------------- frames and their replies

    def _command(self, call: WorkerCall, seconds: float | None) -> list[Any]:
        # No timeout: memory may be large, and kernels compile.
        return [msgspec.msgpack.decode(reply) for reply in self._exchange(_COMMAND, call, seconds)]

    def _exchange(self, kind: bytes, call: WorkerCall, seconds: float | None) -> list[bytes]:
        while self._pending:
            self._take_oldest()
        self._write(kind + self._encode(call))
        return self._read(seconds, f"the call {call.method}")

    def _take_oldest(self) -> None:
        assert not self._pending[0].awaits_masks, "the masks of the step were not supplied"
        replies = self._read(self._timeout, "a step")
        reported = memoryview(replies[self._reporting_rank])
        for rank in range(self._reporting_rank + 1, len(replies)):
            if replies[rank] != reported[:CHECKSUM_BYTES]:
                self._differ(rank)
                raise self._failure()
        self._pending.popleft().set_result(self._outputs.decode(reported[CHECKSUM_BYTES:]))

    def _write(self, frame: bytes) -> None:
        channel = self._running()
        try:
            channel.requests.write(frame, self._timeout)
        except SlowReaderError as error:
            self._hung("a frame was not read", [error.rank or 0])
            raise self._failure() from error
        except RingError as error:
            raise self._failure() from error
        if self._remote is not None:
            self._remote.write(frame)

    def _read(self, seconds: float | None, frame: str) -> list[bytes]:
        silence = f"no reply to {frame}"
        channel = self._running()
        remote = self._remote
        began = time.monotonic()
        try:
            replies = channel.replies.read(seconds)
            if remote is None:
                return replies
            return replies + remote.read(seconds and max(0.0, seconds - (time.monotonic() - began)))
        except NoReplyError as error:
            self._hung(silence, [*error.ranks, *(remote.silent_ranks() if remote is not None else [])])
            raise self._failure() from error
        except RemoteSilentError as error:
            self._hung(silence, error.ranks)
            raise self._failure() from error
        except (RingError, RemoteInterruptedError) as error:
            raise self._failure() from error

    def _running(self) -> EngineChannel:
        self._check()
        channel = self._local.channel
        assert not self._closed, "the executor was shut down"
        return channel

    # ------------------------------------------------------------------------------------------------- failures

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _failure(self) -> Exception:
        # The report may come after the interrupt.
        self._has_failed.wait(_REPORT_SECONDS)
        return self._error or FailureError(Failure(Reason.CRASH_LOOPING, "a worker closed its connection"))

    def worker_news(self, rank: int, message: FromWorker) -> None:
        self._news.put((rank, message))

    def worker_failed(self, failure: Failure, text: str, raised: bool) -> None:
        # A lost node makes workers of other nodes raise, perhaps before its report.
        if raised and self._remote is not None and not self._has_failed.is_set():
            timer = threading.Timer(_CAUSE_SECONDS, self._fail, [failure, text])
            timer.daemon = True
            timer.start()
        else:
            self._fail(failure, text)

    def _hung(self, what: str, ranks: Sequence[int]) -> None:
        text = f"{what} within {self._timeout:g} s: {self._describe(ranks)}"
        self._fail(Failure(Reason.CRASH_LOOPING, text), text)

    def _other_weights(self, rank: int) -> None:
        name = name_of_worker(rank, self._settings.executor)
        text = f"{name} has other weights than node 0: give all nodes the same files"
        self._fail(Failure(Reason.LINK_REFUSED, text), text)

    def _differ(self, rank: int) -> None:
        names = [name_of_worker(each, self._settings.executor) for each in (self._reporting_rank, rank)]
        text = f"{names[0]} and {names[1]} sampled different tokens: use equal devices and drivers for all workers"
        self._fail(Failure(Reason.CRASH_LOOPING, text), text)

    def _fail(self, failure: Failure, text: str) -> None:
        """Kill all workers and report the failure, if it is the first one. Any thread."""
        with self._lock:
            if self._closed or self._error is not None:
                return
            error = self._error = error_of(failure)
            self._reason = failure.message  # another thread may shut down before this one goes on
            failed = self._failed
        self._has_failed.set()
        self._local.kill()
        log.error("%s; all workers are killed", text)
        self._local.interrupt()
        if self._remote is not None:
            self._remote.dismiss(failure.message)
        self._news.put(None)
        if failed is not None:
            failed(error)

    def _describe(self, ranks: Iterable[int]) -> str:
        local = [rank for rank in ranks if rank in self._local.ranks]
        others = [rank for rank in ranks if rank not in self._local.ranks]
        texts = [self._local.describe(local)] if local else []
        if others and self._remote is not None:
            texts.append(self._remote.describe(others))
        return "; ".join(texts)


class _Reply(Future[StepOutput]):
    # The waiting thread receives: another one would cost a switch per step.

    def __init__(self, receive: Callable[[], None]) -> None:
        super().__init__()
        self.awaits_masks = False
        self._receive = receive

    def result(self, timeout: float | None = None) -> StepOutput:
        while not self.done():
            self._receive()
        return super().result()
