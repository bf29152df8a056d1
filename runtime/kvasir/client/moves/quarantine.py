"""Quarantine: a request of a failed step runs alone, and is rejected if its engine fails again.

Strikes count by the request's digest, so also for a client's retry (docs/design/poison.md).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from kvasir.link.protocol import FailedStep

MAX_STRIKES: Final = 3
"""Limit; two suffice if the request was alone in a step."""
REPORT_SECONDS: Final = 30.0
"""Wait of a third attempt for reports on lost engines. Then all their requests get a strike."""
FORGET_SECONDS: Final = 600.0

_MAX_REQUESTS: Final = 10_000
_MAX_ENGINES: Final = 1_000


class Treatment(Enum):
    RUN = "run"
    ALONE = "alone"
    """Send it with AddRequest.alone."""
    WAIT = "wait"
    """Wait for reports on two lost engines."""
    REFUSE = "refuse"


class LostRequest(Protocol):
    @property
    def digest(self) -> bytes: ...

    @property
    def attempt_tokens(self) -> int: ...


@dataclass(slots=True)
class _Record:
    strikes: int
    was_alone: bool
    last: float


@dataclass(slots=True)
class _Loss:
    rank: int
    at: float
    digests: set[bytes]
    cleared: set[bytes] = field(default_factory=set)
    """Requests with progress on another engine."""


class Quarantine:
    """False while every treatment is RUN."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # the oldest strike first
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._losses: OrderedDict[str, _Loss] = OrderedDict()
        # incarnations whose step was counted, as several messages report it
        self._reported: OrderedDict[str, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._records or self._losses)

    def lost(self, engine: str, rank: int, requests: Iterable[LostRequest], ran: FailedStep | None) -> None:
        """Record the loss of an engine. `ran`: the failed step (EngineLost.ran)."""
        digests = set()
        for request in requests:
            if request.attempt_tokens:
                self.passed(request.digest)  # it would end its engine at the same token again
            digests.add(request.digest)
        if ran is not None:
            self._strike(ran)
        elif engine not in self._reported and digests:
            self._losses[engine] = _Loss(rank, self._clock(), digests)
            _trim(self._losses, _MAX_ENGINES)

    def joined(self, engine: str, rank: int, crashed: FailedStep | None) -> None:
        """Take the report on the engine's predecessor (Hello.crashed)."""
        self._losses.pop(engine, None)  # not failed, but frozen or cut off
        if crashed is not None:
            self._strike(crashed)
        for incarnation, loss in list(self._losses.items()):
            if loss.rank == rank:
                self._end_loss(incarnation, loss, is_known=crashed is not None)

    def passed(self, digest: bytes) -> None:
        """Forget the strikes of a request with progress."""
        self._records.pop(digest, None)
        for loss in self._losses.values():
            if digest in loss.digests:
                loss.digests.remove(digest)
                loss.cleared.add(digest)

    def count(self, digest: bytes) -> int:
        record = self._records.get(digest)
        return 0 if record is None else record.strikes

    def treatment(self, digest: bytes) -> Treatment:
        self._expire()
        record = self._records.get(digest)
        strikes = 0 if record is None else record.strikes
        if record is not None and (strikes >= MAX_STRIKES or (strikes >= 2 and record.was_alone)):
            return Treatment.REFUSE
        unknown = sum(digest in loss.digests for loss in self._losses.values())
        if unknown and strikes + unknown >= 2:
            return Treatment.WAIT
        return Treatment.ALONE if strikes + unknown else Treatment.RUN

    def _strike(self, step: FailedStep) -> None:
        loss = self._losses.pop(step.incarnation, None)
        if step.incarnation in self._reported:
            return
        self._count_once(step.incarnation)
        digests = {request.digest for request in step.requests}
        self._add(digests - (set() if loss is None else loss.cleared), alone=len(digests) == 1)

    def _end_loss(self, incarnation: str, loss: _Loss, is_known: bool) -> None:
        del self._losses[incarnation]
        if not is_known:
            self._count_once(incarnation)
            self._add(loss.digests, alone=False)

    def _count_once(self, incarnation: str) -> None:
        self._reported[incarnation] = None
        _trim(self._reported, _MAX_ENGINES)

    def _add(self, digests: Iterable[bytes], alone: bool) -> None:
        for digest in digests:
            record = self._records.setdefault(digest, _Record(0, False, 0.0))
            record.strikes += 1
            record.was_alone = record.was_alone or alone
            record.last = self._clock()
            self._records.move_to_end(digest)
        _trim(self._records, _MAX_REQUESTS)

    def _expire(self) -> None:
        now = self._clock()
        while self._losses and now - (oldest := next(iter(self._losses.items())))[1].at >= REPORT_SECONDS:
            self._end_loss(*oldest, is_known=False)
        while self._records and now - next(iter(self._records.values())).last >= FORGET_SECONDS:
            self._records.popitem(last=False)


def _trim(entries: OrderedDict[Any, Any], most: int) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
