"""The events of the frontend's end of the link, in order."""

from dataclasses import dataclass

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import CacheEvents, FailedStep, Outputs, Result


@dataclass(frozen=True, slots=True)
class EngineJoined:
    """The engine takes requests once it is usable."""

    engine: RemoteEngine


@dataclass(frozen=True, slots=True)
class EngineChanged:
    engine: RemoteEngine


@dataclass(frozen=True, slots=True)
class OutputsReceived:
    engine: RemoteEngine
    message: Outputs


@dataclass(frozen=True, slots=True)
class CacheChanged:
    engine: RemoteEngine
    message: CacheEvents


@dataclass(frozen=True, slots=True)
class CallAnswered:
    engine: RemoteEngine
    result: Result


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The last event of this RemoteEngine. If the incarnation sends Hello again, it joins as a new one."""

    engine: RemoteEngine
    reason: str
    # The failed or stuck step; empty after another loss. None: not known until the engine or its successor joins.
    ran: FailedStep | None = None


LinkEvent = EngineJoined | EngineChanged | OutputsReceived | CacheChanged | CallAnswered | EngineLost
