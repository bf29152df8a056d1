"""The events of the frontend's end of the link. Their owner takes them in order."""

from dataclasses import dataclass

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import CacheEvents, FailedStep, Outputs, Result


@dataclass(frozen=True, slots=True)
class EngineJoined:
    """The link has accepted the engine. It takes requests once it is usable."""

    engine: RemoteEngine


@dataclass(frozen=True, slots=True)
class EngineChanged:
    """The state, the progress or the load of the engine changed."""

    engine: RemoteEngine


@dataclass(frozen=True, slots=True)
class OutputsReceived:
    """The outputs of one step; `engine.stats` has the load."""

    engine: RemoteEngine
    message: Outputs


@dataclass(frozen=True, slots=True)
class CacheChanged:
    """The engine's prefix cache changed."""

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
    # the step that failed or is stuck, empty after another loss; None: not known until the engine or its successor
    # joins
    ran: FailedStep | None = None


LinkEvent = EngineJoined | EngineChanged | OutputsReceived | CacheChanged | CallAnswered | EngineLost
