"""One connection of an engine to one frontend, and its events.

A broken connection's queue is dropped before a new socket sends Hello, so no earlier output follows the new Hello.
"""

import itertools
import logging
from dataclasses import dataclass
from typing import Final, Protocol

from kvasir.link.codec import Agreement, Codec, UnknownMessage, encode
from kvasir.link.engine_end.announced_engine import AnnouncedEngine
from kvasir.link.protocol import (
    Abort,
    AddRequest,
    Call,
    FromEngine,
    FromFrontend,
    Goodbye,
    Heartbeat,
    ProtocolError,
    Refused,
    StartWave,
    Welcome,
)
from kvasir.wire.keys import LinkKeys
from kvasir.wire.peer import Peer, PeerState
from kvasir.wire.reactor import Reactor

RETRY_SECONDS: Final = (0.05, 1.0)
REFUSED_RETRY_SECONDS: Final = 30.0  # the frontend may be replaced by then

log = logging.getLogger(__name__)
_names = itertools.count()


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


class ConnectionOwner(Protocol):
    @property
    def must_probe(self) -> bool:
        """Return whether a new endpoint may lead to a frontend that is on the link."""

    def shows_load(self, connection: "FrontendConnection") -> bool:
        """Return whether this frontend shows the engine's load in its metrics."""

    def probed(self, connection: "FrontendConnection", frontend: str) -> bool:
        """Return whether to send Hello to this frontend. "": it has no name."""

    def failed(self, connection: "FrontendConnection") -> None:
        """The connection reaches no frontend."""

    def welcomed(self, connection: "FrontendConnection", frontend: str) -> None: ...

    def wants_cache_events(self, frontend: str) -> None:
        """The frontend gets the content of the prefix cache."""

    def lost(self, connection: "FrontendConnection", frontend: str) -> None: ...

    def received(
        self, connection: "FrontendConnection", frontend: str, message: AddRequest | Abort | Call | StartWave
    ) -> None: ...

    def saw_draining(self, frontend: str) -> None:
        """The frontend sends no more requests."""


class FrontendConnection:
    def __init__(
        self,
        endpoint: str,
        engine: AnnouncedEngine,
        keys: LinkKeys | None,
        timeout: float,
        reactor: Reactor,
        link: ConnectionOwner,
        codec: Codec,
    ) -> None:
        self.endpoint = endpoint
        self.wanted = True  # False once the address is not listed: a live connection stays, but is not opened again
        self.last_frontend: str | None = None
        self.agreement = Agreement(codec)
        self.peer = Peer(
            f"frontend at {endpoint}", timeout, RETRY_SECONDS, self._on_frames, self._on_lost, self._beat
        )
        self._engine = engine
        self._keys = keys
        self._reactor = reactor
        self._link = link

    # ------------------------------------------------------------------------------------- driven by the link

    def open(self) -> None:
        if self.last_frontend is None and self._link.must_probe:
            self._connect(f"-probe-{next(_names)}", PeerState.PROBING)
        else:
            self._connect()

    def _connect(self, suffix: str = "", state: PeerState = PeerState.GREETING) -> None:
        # The latest connection with the engine's name takes the name over, so a probe has another one.
        name = self._engine.identity.incarnation + suffix
        self.peer.open(self._reactor, self.endpoint, self._keys, state, identity=name)

    def show(self, message: FromEngine | None) -> None:
        """Send without blocking, if the frontend's version understands it. A full queue loses the frontend."""
        if message is not None and self.agreement.understands(message):
            self.peer.send([encode(message)])

    def greet(self) -> None:
        self.show(self._engine.greeting())

    def _beat(self, state: PeerState) -> None:
        if state is PeerState.PROBING:  # a frontend that does not know the sender answers with its own name
            self.show(Heartbeat())
        elif state is PeerState.AGREED:
            self.show(self._engine.heartbeat(self._link.shows_load(self)))
        else:
            self.greet()

    # -------------------------------------------------------------------------------------- from the frontend

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            if len(frames) != 1:
                raise ProtocolError(f"a message of {len(frames)} frames instead of one")
            message = self.agreement.codec.decode_from_frontend(frames[0])
        except ProtocolError as error:
            self.peer.drop(f"it sent a malformed frame: {error}")
            return
        if isinstance(message, Welcome):
            self._on_welcome(message)
        elif isinstance(message, Refused):
            self._on_refused(message)
        elif self.peer.server:  # otherwise it belongs to an earlier conversation
            self.peer.heard()
            self._on_message(self.peer.server, message)

    def _on_message(self, frontend: str, message: FromFrontend | UnknownMessage) -> None:
        match message:
            case AddRequest() | Abort() | Call() | StartWave():
                self._link.received(self, frontend, message)
            case Heartbeat(saw_draining=True):
                self._link.saw_draining(frontend)
            case Goodbye():
                self.peer.drop("it has shut down", logging.INFO)
            case UnknownMessage():
                self.agreement.skip(f"frontend {frontend}", message)

    def _on_welcome(self, message: Welcome) -> None:
        before = self.peer.server
        if not self.peer.agree(message.frontend) or before == message.frontend:
            return  # the answer to a Hello with a new phase
        self._part(before)
        self.agreement.begin(message.protocol)
        self.last_frontend = message.frontend
        log.info("on the link to %s at %s", message.frontend, self.endpoint)
        self._link.welcomed(self, message.frontend)
        for introduction in self._engine.introduction():
            self.show(introduction)
        if message.cache_events:
            self._link.wants_cache_events(message.frontend)

    def _on_refused(self, message: Refused) -> None:
        frontend = self.peer.server
        if self.peer.state is PeerState.PROBING:
            if self._link.probed(self, message.frontend):
                self.peer.close()
                self._connect()
        elif message.retry:
            if frontend:  # otherwise Hello was sent
                log.warning("frontend %s at %s asks to start over: %s", frontend, self.endpoint, message.reason)
                self._part(frontend)
                self.peer.greet()
        elif self.peer.refuse(message.reason, REFUSED_RETRY_SECONDS):
            self._part(frontend)

    def _on_lost(self, frontend: str, reason: str) -> None:
        self._part(frontend)
        if not frontend:
            self._link.failed(self)

    def _part(self, frontend: str) -> None:
        if frontend:
            self._link.lost(self, frontend)
