"""The states of an engine's connection to one frontend, and its events."""

from dataclasses import dataclass
from enum import Enum

from kvasir.link.protocol import Abort, AddRequest, Call, StartWave


@dataclass(frozen=True)
class LinkProblem:
    message: str
    refused: bool = False  # the frontend rejected the engine, or one side the other's keys


class State(Enum):
    CLOSED = "there is no socket; another attempt follows"
    PROBING = "the frontend at this endpoint is not known yet; it may be on the link by another endpoint"
    GREETING = "the frontend has not answered the Hello yet"
    WELCOMED = "on the link"
    REFUSED = "the frontend rejects this engine"


@dataclass(frozen=True)
class Received:
    frontend: str  # its incarnation
    message: AddRequest | Abort | Call | StartWave


@dataclass(frozen=True)
class FrontendLost:
    """The frontend's requests are aborted."""

    frontend: str


@dataclass(frozen=True)
class CacheEventsWanted:
    """Send the prefix cache's content, and its changes until FrontendLost."""

    frontend: str


@dataclass(frozen=True)
class DrainSettled:
    """Every frontend has read Draining: no request is on its way any more."""


LinkEvent = Received | FrontendLost | CacheEventsWanted | DrainSettled
