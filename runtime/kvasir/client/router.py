"""The router: chooses the engine for each request. It takes the least loaded one."""

from collections.abc import Callable, Iterable

from kvasir.link.frontend_end.remote_engine import RemoteEngine


class Router:
    """Picks the engine with the fewest requests, counting those of this frontend and of other frontends.

    The number of own requests is exact and current (`in_flight`). A report of an engine counts the requests of all
    frontends but is a step old. So the requests in a report minus the own ones *at that time* count as those of
    other frontends until the next report. No request is counted twice, and a burst between two reports spreads
    evenly.
    """

    def __init__(self, in_flight: Callable[[str], int]) -> None:
        self._in_flight = in_flight
        self._others: dict[str, int] = {}
        self._turn = 0

    def reported(self, engine: RemoteEngine) -> None:
        """Take the engine's reported load. Requests that it had finished must be off `in_flight` already."""
        if engine.stats is not None:
            total = engine.stats.waiting + engine.stats.running
            self._others[engine.incarnation] = max(0, total - self._in_flight(engine.incarnation))

    def forget(self, incarnation: str) -> None:
        self._others.pop(incarnation, None)

    def pick(self, engines: Iterable[RemoteEngine]) -> RemoteEngine | None:
        """Return the least loaded usable engine, taking equal ones in turn; None if no engine is usable."""
        usable = [engine for engine in engines if engine.usable]
        if not usable:
            return None
        self._turn += 1
        first = self._turn % len(usable)
        return min(usable[first:] + usable[:first], key=self.load)

    def load(self, engine: RemoteEngine) -> int:
        """Return the requests that the engine has, those of other frontends included."""
        return self._in_flight(engine.incarnation) + self._others.get(engine.incarnation, 0)
