"""The conversation of an engine with one frontend: its states, why there is none, and the events that it causes."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from kvasir.link.protocol import Abort, AddRequest, Call, StartWave

if TYPE_CHECKING:  # a connection calls the methods below with itself
    from kvasir.link.engine_end.frontend_connection import FrontendConnection


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


class Conversation(Protocol):
    """The calls of a connection to the owner of all connections, in the link's thread."""

    @property
    def must_probe(self) -> bool:
        """A new endpoint may lead to a frontend that is on the link."""

    def shows_load(self, connection: "FrontendConnection") -> bool:
        """Whether the frontend of this connection shows the engine's load in its metrics."""

    def probed(self, connection: "FrontendConnection", frontend: str) -> bool:
        """Return whether the connection may send Hello to this frontend; "": a frontend without a name."""

    def failed(self, connection: "FrontendConnection") -> None:
        """No frontend can be reached by this connection."""

    def welcomed(self, connection: "FrontendConnection", frontend: str) -> None: ...

    def wants_cache_events(self, frontend: str) -> None:
        """The frontend of this Welcome needs the content of the prefix cache."""

    def lost(self, connection: "FrontendConnection", frontend: str) -> None: ...

    def received(
        self, connection: "FrontendConnection", frontend: str, message: AddRequest | Abort | Call | StartWave
    ) -> None: ...

    def saw_draining(self, frontend: str) -> None:
        """The frontend sends no more requests."""
