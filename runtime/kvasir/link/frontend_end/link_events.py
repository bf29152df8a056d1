"""The events of the frontend's end of the link. FrontendLink queues them; its owner takes them in order."""

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
    """The engine sent the outputs of one step; its load is in `engine.stats`."""

    engine: RemoteEngine
    message: Outputs


@dataclass(frozen=True, slots=True)
class CacheChanged:
    """The engine reported changes of its prefix cache."""

    engine: RemoteEngine
    message: CacheEvents


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The engine answered a Call."""

    engine: RemoteEngine
    result: Result


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine is off the link: the last event of this RemoteEngine.

    If the same incarnation sends Hello again, it joins as a new RemoteEngine.
    """

    engine: RemoteEngine
    reason: str
    ran: FailedStep | None = None
    """The step that failed or is stuck; without requests if the engine was lost for another reason. None: not known
    until the engine, or its successor, joins."""


LinkEvent = EngineJoined | EngineChanged | OutputsReceived | CacheChanged | CallAnswered | EngineLost
