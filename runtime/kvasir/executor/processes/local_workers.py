"""The worker processes of one machine, connected by shared memory."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.processes.started_worker import RunningWorker, StartedWorker, StartWorker, wait_for_end
from kvasir.executor.processes.worker_messages import (
    FromWorker,
    WorkerError,
    WorkerPhase,
    WorkerSetup,
    current_log_level,
    device_of_worker,
    name_of_worker,
    settings_of_worker,
)
from kvasir.executor.shared_memory.channel import EngineChannel
from kvasir.executor.shared_memory.segment import SharedMemoryError
from kvasir.executor.shared_memory.worker_progress import ProgressReader
from kvasir.hub.model_info import ModelInfo
from kvasir.parallel.tcp_rendezvous import TcpRendezvous
from kvasir.process.failures import FailureError
from kvasir_contract.failure import Failure
from kvasir_contract.logs import current_format
from kvasir_contract.reasons import Reason


class WorkerStates:
    """Descriptions of workers from shared memory and stacks. Any thread."""

    def __init__(
        self,
        config: ExecutorConfig,
        workers: Sequence[RunningWorker],
        progress: Sequence[ProgressReader],
        first_rank: int = 0,
    ) -> None:
        self._config = config
        self._workers = workers
        self._progress = progress
        self._first_rank = first_rank

    def name(self, rank: int) -> str:
        return name_of_worker(rank, self._config)

    def describe(self, ranks: Iterable[int]) -> str:
        return "; ".join(map(self._describe_one, ranks))

    def phase_of(self, rank: int) -> str:
        progress = self._progress[rank - self._first_rank].read()
        if progress is None:
            return f"phase {WorkerPhase.START.label}"
        seconds = time.monotonic() - progress.since
        step = f" of step {progress.step}" if progress.phase in (WorkerPhase.PREFILL, WorkerPhase.DECODE) else ""
        return f"phase {WorkerPhase(progress.phase).label}{step} for {seconds:.1f} s"

    def _describe_one(self, rank: int) -> str:
        worker = self._workers[rank - self._first_rank]
        if worker.is_stopped:
            return f"{self.name(rank)} is stopped in {self.phase_of(rank)}"
        place = worker.place() or "an unknown place"
        return f"{self.name(rank)} is in {self.phase_of(rank)}, at {place}"


_END_SECONDS: Final = 1.0


class LocalWorkers:
    """The workers of one machine; the owner kills all if one fails. Start them in the main thread."""

    def __init__(
        self,
        ranks: range,
        settings: ResolvedEngine,
        model: ModelInfo,
        received: Callable[[int, FromWorker], None],
        failed: Callable[[Failure, str, bool], None],
        start_worker: StartWorker = StartedWorker,
    ) -> None:
        """`received` gets each message of a starting worker; `failed` its failure, the log line, and whether it
        raised an error. Threads call them.
        """
        self.ranks = ranks
        self._settings = settings_of_worker(settings, len(ranks))
        self._model = model
        self._received = received
        self._failed = failed
        self._start_worker = start_worker
        self._timeout = settings.executor.worker_timeout
        self._workers: list[RunningWorker] = []
        self._channel: EngineChannel | None = None
        self.states = WorkerStates(settings.executor, self._workers, [], ranks.start)

    def start(self, rendezvous: int | TcpRendezvous | None) -> None:
        """Start the processes; they load the model. Raises FailureError."""
        try:
            channel = self._channel = EngineChannel(len(self.ranks))
        except SharedMemoryError as error:
            raise FailureError(Failure(Reason.OUT_OF_MEMORY, str(error))) from error
        self.states = WorkerStates(self._settings.executor, self._workers, channel.progress, self.ranks.start)
        for rank in self.ranks:
            self._workers.append(self._start_worker(self._setup(rank, channel, rendezvous), self._settings.threads))
            if isinstance(rendezvous, TcpRendezvous):
                rendezvous = dataclasses.replace(rendezvous, listener=None)  # the first rank serves the store
        channel.close_handles()
        for worker in self._workers:
            worker.watch(self._received, self._on_end, self._on_stop, self._timeout)

    @property
    def channel(self) -> EngineChannel:
        # its ranks begin at 0
        assert self._channel is not None, "the executor was not started"
        return self._channel

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def describe(self, ranks: Iterable[int] | None = None) -> str:
        started = range(self.ranks.start, self.ranks.start + len(self._workers))
        return self.states.describe(started if ranks is None else ranks)

    def kill(self) -> None:
        for worker in self._workers:
            worker.kill()

    def interrupt(self) -> None:
        """End every wait for the workers. Any thread."""
        if self._channel is not None:
            self._channel.interrupt()

    def shutdown(self) -> None:
        """End or kill the workers, and free the memory. Call it once."""
        for worker in self._workers:
            worker.dismiss()
        self.interrupt()
        if not wait_for_end(self._workers, _END_SECONDS):
            self.kill()
        if wait_for_end(self._workers, _END_SECONDS):
            for worker in self._workers:
                worker.close()
        if self._channel is not None:
            self._channel.close()

    def _setup(self, rank: int, channel: EngineChannel, rendezvous: int | TcpRendezvous | None) -> WorkerSetup:
        place = rank - self.ranks.start
        return WorkerSetup(
            rank=rank,
            handle=channel.handle(place),
            settings=dataclasses.replace(self._settings, device=device_of_worker(self._settings.device, place)),
            model=self._model,
            engine_pid=os.getpid(),
            stack_descriptor=-1,
            rendezvous=rendezvous,
            log_name=f"engine-{self._settings.data_parallel_rank}-worker-{rank}",
            log_level=current_log_level(),
            log_format=current_format(),
        )

    def _on_end(self, rank: int, how: str, error: WorkerError | None) -> None:
        states = self.states
        if error is not None:
            failure = Failure(error.reason, error.message)
            self._failed(failure, f"{states.name(rank)} failed in phase {error.phase}", True)
            return
        text = f"{states.name(rank)} {how} in {states.phase_of(rank)}"
        self._failed(Failure(Reason.CRASH_LOOPING, text), text, False)

    def _on_stop(self, rank: int) -> None:
        states = self.states
        text = f"{states.name(rank)} has been stopped for {self._timeout:g} s in {states.phase_of(rank)}"
        self._failed(Failure(Reason.CRASH_LOOPING, text), text, False)
