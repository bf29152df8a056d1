"""Engines of a group as threads: a forward pass of one is a meeting of all.

with engines_in_waves(2) as group:
    complete(group, 0, "a", tokens=5)
    group.wait_paused()
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

from kvasir.engine.inbox import Inbox
from kvasir.engine.waves import LockStep
from kvasir.worker.step import StepInput, StepOutput
from runtime.engine.looped_engine import WAIT, Engine

SYNC = 4
"""Turns between two decisions in these tests."""


class Meeting:
    """Where the engines meet. All of them must come for the same reason."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.log: list[str] = []
        """Why the engines have met."""
        self.calls: list[SimpleQueue[int | None]] = [SimpleQueue() for _ in range(size)]
        self._barrier = threading.Barrier(size, timeout=WAIT)
        self._given: list[tuple[str, Sequence[bool]]] = [("", ())] * size

    def meet(self, rank: int, reason: str, flags: Sequence[bool]) -> list[bool]:
        self._given[rank] = reason, flags
        try:
            self._barrier.wait()
            given = list(self._given)
            if rank == 0:
                self.log.append(reason)
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("an engine of the group is gone") from None
        assert len({reason for reason, _ in given}) == 1, f"the engines disagree: {given}"
        return [any(column) for column in zip(*(flags for _, flags in given), strict=True)]

    def leave(self) -> None:
        """End the group, as the loss of an engine does."""
        self._barrier.abort()
        for calls in self.calls:
            calls.put(None)


class ThreadWaveGroup:
    """A WaveGroup."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.meeting = meeting

    def call_next(self, wave: int) -> None:
        self.meeting.calls[(self.rank + 1) % self.meeting.size].put(wave)

    def wait_for_call(self) -> int:
        wave = self.meeting.calls[self.rank].get()
        if wave is None:
            raise RuntimeError("an engine of the group is gone")
        return wave

    def any(self, flags: Sequence[bool]) -> list[bool]:
        return self.meeting.meet(self.rank, "decide", flags)

    def forward_pass(self) -> None:
        self.meeting.meet(self.rank, "pass", ())


class WatchedWaves(LockStep):
    def __init__(self, group: ThreadWaveGroup, inbox: Inbox) -> None:
        self.paused = threading.Event()
        self.paused.set()
        self.began: SimpleQueue[int] = SimpleQueue()
        self.empty_passes = 0
        self._join = group.forward_pass
        super().__init__(group, self._empty, inbox.call_wave, inbox.fail, SYNC)

    def begin(self, wave: int) -> None:
        super().begin(wave)
        if self.running:
            self.paused.clear()
            self.began.put(wave)

    def after_step(self, *args: object, **kwargs: object) -> None:
        super().after_step(*args, **kwargs)  # type: ignore[arg-type]
        if not self.running:
            self.paused.set()

    def _empty(self) -> None:
        self.empty_passes += 1
        self._join()


class GroupOfEngines:
    def __init__(
        self, size: int, pool: ThreadPoolExecutor, drain_settle: float, drain_timeouts: Sequence[float]
    ) -> None:
        self.meeting = Meeting(size)
        self.waves: list[WatchedWaves] = []
        self.engines: list[Engine] = []
        for rank in range(size):
            group = ThreadWaveGroup(rank, self.meeting)
            engine = Engine(
                pool,
                drain_timeout=drain_timeouts[rank] if drain_timeouts else 3600,
                drain_settle=drain_settle,
                waves=self._maker(group),
            )
            engine.harness.executor.execute = passing(  # type: ignore[assignment, method-assign]
                engine.harness.executor.execute, group.forward_pass
            )
            self.engines.append(engine)

    def _maker(self, group: ThreadWaveGroup) -> Callable[[Inbox], WatchedWaves]:
        def make(inbox: Inbox) -> WatchedWaves:
            self.waves.append(WatchedWaves(group, inbox))
            return self.waves[-1]

        return make

    def wait_paused(self) -> None:
        for waves in self.waves:
            assert waves.paused.wait(WAIT)

    @property
    def passes(self) -> int:
        return self.meeting.log.count("pass")

    def drain(self) -> None:
        for engine in self.engines:
            engine.loop.drain()
        for engine in self.engines:
            engine.ended.result(WAIT)


def passing(
    execute: Callable[[StepInput], StepOutput], forward_pass: Callable[[], None]
) -> Callable[[StepInput], StepOutput]:
    """Make steps with rows meet those of the other engines, as layers of experts do."""

    def run(step: StepInput) -> StepOutput:
        if step.scheduled:
            forward_pass()
        return execute(step)

    return run


@contextmanager
def engines_in_waves(
    size: int, *, drain_settle: float = 0.05, drain_timeouts: Sequence[float] = ()
) -> Iterator[GroupOfEngines]:
    """Engines that are drained at the end; one that has failed before does not hold up the others."""
    with ThreadPoolExecutor(size) as pool:
        group = GroupOfEngines(size, pool, drain_settle, drain_timeouts)
        try:
            yield group
        finally:
            for engine in group.engines:
                engine.loop.drain()
            for engine in group.engines:
                engine.ended.exception(2 * WAIT)
            group.meeting.leave()
