"""The conversation of an engine with one frontend: its states, why there is none, and the events that it causes."""

from dataclasses import dataclass
from enum import Enum

from kvasir.link.protocol import Abort, AddRequest, Call, StartWave


@dataclass(frozen=True)
class LinkProblem:
    """Why an engine is not on a frontend's link."""

    message: str
    refused: bool = False
    """The frontend answered and rejected the engine, or one side rejected the keys of the other."""


class State(Enum):
    CLOSED = "there is no socket; another attempt follows"
    PROBING = "the frontend at this endpoint is not known yet; it may be on the link by another endpoint"
    GREETING = "the frontend has not answered the Hello yet"
    WELCOMED = "on the link"
    REFUSED = "the frontend rejects this engine"


@dataclass(frozen=True)
class Received:
    frontend: str
    """Its incarnation; the answers go there."""
    message: AddRequest | Abort | Call | StartWave


@dataclass(frozen=True)
class FrontendLost:
    """The frontend is gone: its requests are aborted."""

    frontend: str


@dataclass(frozen=True)
class CacheEventsWanted:
    """The frontend needs the content of the prefix cache. Until FrontendLost, it gets all changes."""

    frontend: str


@dataclass(frozen=True)
class DrainSettled:
    """Every frontend has read that the engine drains: no request is on its way any more."""


LinkEvent = Received | FrontendLost | CacheEventsWanted | DrainSettled
