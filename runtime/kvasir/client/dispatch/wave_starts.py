"""Wakes all engines of a group at once when a request reaches one of them; owned by the dispatcher.

The engines of a group share the experts of a model, and step together in *waves* (kvasir.engine.waves). The engine
that gets a request starts a wave by itself, along a ring: the last engine wakes after as many hops as there are
engines. A StartWave from the frontend reaches all of them in one hop. Nothing depends on it, so it may be late, or
missing for engines of an older version and of other frontends.
"""

from collections.abc import Callable, Mapping

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import FEATURE_WAVES, StartWave

START = StartWave()


class WaveStarts:
    """Sends a StartWave to the other engines of a group that seems to sleep."""

    def __init__(
        self,
        engines: Mapping[str, RemoteEngine],
        in_flight: Callable[[str], int],
        send: Callable[[str, StartWave], object],
    ) -> None:
        """`engines`: a live view, by incarnation. `in_flight`: the requests of this frontend in an engine."""
        self._engines = engines
        self._in_flight = in_flight
        self._send = send

    def request_sent(self, target: RemoteEngine) -> None:
        """Wake the other engines if this is the only request that the frontend has in the group."""
        if not _in_waves(target):
            return
        group = [engine for engine in self._engines.values() if _in_waves(engine)]
        if sum(self._in_flight(engine.incarnation) for engine in group) > 1:
            return  # a wave is running
        for engine in group:  # a list, because a failed send removes the engine from the link
            if engine is not target and engine.agreement.understands(START):
                self._send(engine.incarnation, START)


def _in_waves(engine: RemoteEngine) -> bool:
    return engine.usable and engine.capacity is not None and FEATURE_WAVES in engine.capacity.features
