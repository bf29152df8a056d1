"""Runs sections in worker processes, which it replaces if one hangs, ends or has broken its device.

Sections that may run side by side go to several workers; those that measure times run alone.
"""

import multiprocessing
import queue
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from bench.gpu.results import Results
from bench.gpu.sections import CEILINGS, Section
from bench.gpu.worker import Ended, Facts, Job, Message, Options, serve

# Seconds until a process has loaded torch and found its device.
START_LIMIT: Final = 90.0
# Seconds that a process may take to end.
_ENDING: Final = 5.0


class WorkerLost(Exception):
    # The message has the reason.
    pass


class StartFailed(WorkerLost):
    pass


class Supervisor:
    """`deadline`: by time.monotonic(); no section runs past it."""

    def __init__(self, options: Options, results: Results, deadline: float) -> None:
        self._options, self._results, self._deadline = options, results, deadline
        # A process did not start, and no other one will.
        self._is_lost = False

    def run(self, sections: Sequence[Section], jobs: int) -> None:
        """Run parallel sections first, in `jobs` processes, then the others."""
        shared = [section for section in sections if not section.alone]
        alone = [section for section in sections if section.alone]
        threads = [
            threading.Thread(target=self._drive, args=(one,))
            for one in self._queues(shared, min(jobs, len(shared)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in self._queues(alone, 1):
            self._drive(one)

    def _queues(self, sections: Sequence[Section], jobs: int) -> "list[queue.SimpleQueue[Section]]":
        waiting: queue.SimpleQueue[Section] = queue.SimpleQueue()
        for section in sections:
            waiting.put(section)
        return [waiting] * jobs

    def _drive(self, waiting: "queue.SimpleQueue[Section]") -> None:
        worker: _Worker | None = None
        while (section := _next(waiting)) is not None:
            began = time.monotonic()
            limit = min(section.limit, self._deadline - began)
            if limit <= 0 or self._is_lost:
                reason = "no process starts" if self._is_lost else "the time of all sections is over"
                self._results.ended(section.name, f"not run: {reason}", 0.0)
                continue
            try:
                if worker is None:
                    worker = _Worker(self._options, self._results, self._deadline)
                    began = time.monotonic()
                ended = worker.run(section, limit)
            except WorkerLost as lost:
                self._is_lost = self._is_lost or isinstance(lost, StartFailed)
                ended = Ended(str(lost), is_broken=True)
            self._results.ended(section.name, ended.error, time.monotonic() - began)
            if ended.is_broken and worker is not None:
                worker.close()
                worker = None
        if worker is not None:
            worker.close()


def _next(waiting: "queue.SimpleQueue[Section]") -> Section | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


class _Worker:
    """A process. Raises StartFailed if it does not start."""

    def __init__(self, options: Options, results: Results, deadline: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._results = results
        self._connection: Connection[Job, Message]
        self._connection, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=serve, args=(theirs, options), daemon=False)
        self._process.start()
        theirs.close()
        limit = min(deadline, time.monotonic() + START_LIMIT)
        try:
            while not isinstance(message := self._receive(limit), Facts):
                results.take(CEILINGS, message)  # a warning
        except WorkerLost as lost:
            self.close()
            raise StartFailed(str(lost)) from lost
        results.facts(message.values)

    def run(self, section: Section, limit: float) -> Ended:
        """Raises WorkerLost if it ends, or has not ended the section within the limit."""
        deadline = time.monotonic() + limit
        try:
            self._connection.send(Job(section, self._results.figures(CEILINGS)))
        except OSError as error:
            raise WorkerLost(f"the process has ended: {error}") from error
        while True:
            message = self._receive(deadline)
            if isinstance(message, Ended):
                return message
            self._results.take(section.name, message)

    def close(self) -> None:
        self._connection.close()
        self._process.join(_ENDING)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_ENDING)

    def _receive(self, deadline: float) -> Message:
        try:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                self._process.kill()
                raise WorkerLost("killed: it took longer than its limit")
            return self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(_ENDING)
            raise WorkerLost(f"the process ended with exit code {self._process.exitcode}") from error
