"""Which engine takes the next request: the one place where that is decided.

Least loaded is what this router goes by; routing by the engines' KV caches comes here too.
"""

from collections.abc import Callable, Iterable

from kvasir.link.frontend_end.remote_engine import RemoteEngine


class Router:
    """Picks the engine with the fewest requests, this frontend's own and those of other frontends.

    Own requests are known exactly and at once (`in_flight`). A report counts the requests of all frontends but is a
    step old, so what it has beyond the own ones *at that time* is taken for the others' and kept until the next
    report. No request is counted twice, and a burst between two reports spreads evenly.
    """

    def __init__(self, in_flight: Callable[[str], int]) -> None:
        self._in_flight = in_flight
        self._others: dict[str, int] = {}
        self._turn = 0

    def reported(self, engine: RemoteEngine) -> None:
        """The engine sent its load; what it finished by then must be off `in_flight` already."""
        if engine.stats is not None:
            total = engine.stats.waiting + engine.stats.running
            self._others[engine.incarnation] = max(0, total - self._in_flight(engine.incarnation))

    def forget(self, incarnation: str) -> None:
        self._others.pop(incarnation, None)

    def pick(self, engines: Iterable[RemoteEngine]) -> RemoteEngine | None:
        """The least loaded usable engine, equals in turn; None when none is usable."""
        usable = [engine for engine in engines if engine.usable]
        if not usable:
            return None
        self._turn += 1
        first = self._turn % len(usable)
        return min(usable[first:] + usable[:first], key=self._load)

    def _load(self, engine: RemoteEngine) -> int:
        return self._in_flight(engine.incarnation) + self._others.get(engine.incarnation, 0)
