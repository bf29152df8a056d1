"""Wakes all engines of a group that steps in waves. Nothing depends on it."""

from collections.abc import Callable, Mapping

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import FEATURE_WAVES, StartWave

START = StartWave()


class WaveStarts:
    def __init__(
        self,
        engines: Mapping[str, RemoteEngine],
        in_flight: Callable[[str], int],
        send: Callable[[str, StartWave], object],
    ) -> None:
        self._engines = engines
        self._in_flight = in_flight
        self._send = send

    def request_sent(self, target: RemoteEngine) -> None:
        if not _in_waves(target):
            return
        group = [engine for engine in self._engines.values() if _in_waves(engine)]
        if sum(self._in_flight(engine.incarnation) for engine in group) > 1:
            return  # a wave is running
        # the engine would wake the others one by one along a ring
        for engine in group:
            if engine is not target and engine.agreement.understands(START):
                self._send(engine.incarnation, START)


def _in_waves(engine: RemoteEngine) -> bool:
    return engine.usable and engine.capacity is not None and FEATURE_WAVES in engine.capacity.features
