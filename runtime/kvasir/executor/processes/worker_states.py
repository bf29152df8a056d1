"""The activity of each worker, as text for messages."""

import time
from collections.abc import Iterable, Sequence

from kvasir.config.settings import ExecutorConfig
from kvasir.executor.processes.started_worker import RunningWorker
from kvasir.executor.processes.worker_messages import WorkerPhase, name_of_worker
from kvasir.executor.shared_memory.worker_progress import ProgressReader


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
