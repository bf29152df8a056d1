"""The client's end of a connection: it greets until the server agrees, then both sides send heartbeats.

The keys are agreed in ZMQ's handshake; versions and terms by the owner, who reads the server's answers.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import zmq

from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.client_socket import ClientSocket
from kvasir.wire.keys import LinkKeys
from kvasir.wire.reactor import Reactor

log = logging.getLogger(__name__)


class PeerState(Enum):
    CLOSED = "there is no socket; the owner may open it again"
    PROBING = "an unknown server is asked for its name"
    GREETING = "the hello is not answered yet"
    AGREED = "both sides send heartbeats"
    REFUSED = "the server rejects this client until the next hello"


_S = PeerState
TRANSITIONS: Final = {
    _S.CLOSED: (_S.CLOSED, _S.PROBING, _S.GREETING),
    _S.PROBING: (_S.CLOSED,),
    _S.GREETING: (_S.CLOSED, _S.AGREED, _S.REFUSED),
    _S.AGREED: (_S.CLOSED, _S.GREETING, _S.AGREED, _S.REFUSED),  # AGREED: with a successor of the server
    _S.REFUSED: (_S.CLOSED, _S.GREETING),
}


@dataclass(frozen=True)
class LinkProblem:
    message: str
    refused: bool = False  # the server rejected the client, or one side the other's key


class Peer:
    """Belongs to the reactor's thread; `server` and `problem` may be read in others."""

    def __init__(
        self,
        name: str,
        timeout: float,
        retry_seconds: tuple[float, float],
        on_frames: Callable[[list[Any]], object],
        on_lost: Callable[[str, str], object],
        beat: Callable[[PeerState], object],
    ) -> None:
        """`retry_seconds`: the shortest and the longest wait before an attempt; they double. `on_lost` gets the
        server that was lost, or "" after an attempt, and the reason. `beat` sends the message that a state needs.
        """
        self.name = name
        self.state = PeerState.CLOSED
        self.server = ""  # its incarnation, while AGREED
        self.problem: LinkProblem | None = None
        self.retry_at = 0.0  # the next attempt (CLOSED), or the next hello (REFUSED)
        self._timeout = timeout
        self._retry, self._retry_seconds = retry_seconds[0], retry_seconds
        self._on_frames = on_frames
        self._on_lost = on_lost
        self._beat = beat
        self._last_seen = 0.0
        self._seldom = SeldomLog(log)
        self._socket: ClientSocket | None = None
        self._cannot_send = False

    def open(
        self,
        reactor: Reactor,
        endpoint: str,
        keys: LinkKeys | None,
        state: PeerState = PeerState.GREETING,
        **options: Any,
    ) -> None:
        """`options`: see ClientSocket."""
        try:
            self._socket = ClientSocket(reactor, endpoint, keys, self._on_frames, self._on_end, **options)
        except zmq.ZMQError as error:  # for example, no file descriptors left
            self.drop(f"a connection cannot be made: {error}")
        else:
            self._begin(state)

    def tick(self, now: float, late: float) -> None:
        """Call this at each beat. `late`: seconds that this process was blocked."""
        self._last_seen += late
        if self.state is PeerState.REFUSED:
            if now >= self.retry_at:
                self.greet()
        elif self.state is not PeerState.CLOSED and (silence := now - self._last_seen) > self._timeout:
            self.drop(f"it has been silent for {silence:.1f} s")
        else:
            self.beat()

    def beat(self) -> None:
        if self.state is not PeerState.CLOSED:
            self._beat(self.state)

    def heard(self) -> None:
        self._last_seen = time.monotonic()

    def greet(self) -> None:
        """Start over, after the server forgot or rejected this client."""
        self._begin(PeerState.GREETING)

    def agree(self, server: str) -> bool:
        """Return False if this client has not greeted: the answer is ignored."""
        if not self._enter(PeerState.AGREED):
            return False
        self.server, self.problem = server, None
        self._retry = self._retry_seconds[0]
        self.heard()
        return True

    def refuse(self, reason: str, seconds: float = math.inf) -> bool:
        """The server rejects this client, which greets again in so many seconds."""
        if not self._enter(PeerState.REFUSED):
            return False
        self.retry_at = time.monotonic() + seconds
        self._fail(reason, refused=True)
        return True

    def send(self, frames: list[bytes]) -> None:
        """Send without blocking. A full queue loses the server."""
        if self._socket is None or self._cannot_send:
            return
        try:
            self._socket.send(frames)
        except zmq.ZMQError as error:
            self._cannot_send = True
            self._socket.receive_all()  # one of its messages may have the cause
            if self._cannot_send:  # otherwise a handler has closed the connection
                self.drop(f"nothing can be sent to it, its queue is full or the connection broke: {error}")

    def drop(self, reason: str, level: int = logging.WARNING, *, refused: bool = False) -> None:
        """Close the connection; the owner may open it again at `retry_at`."""
        server = self.server
        self.close()
        self.retry_at = time.monotonic() + self._retry
        self._retry = min(2 * self._retry, self._retry_seconds[1])
        self._fail(reason, refused)
        if server:
            log.log(level, "%s (%s) is lost: %s", self.name, server, reason)
        elif not refused:
            self._seldom.info(f"no connection to {self.name}: {reason}; another attempt follows", about=self.name)
        self._on_lost(server, reason)

    def close(self, linger: float = 0.0) -> None:
        self._enter(PeerState.CLOSED)
        if self._socket is not None:
            self._socket.close(linger)
        self._socket, self._cannot_send = None, False

    def _begin(self, state: PeerState) -> None:
        if self._enter(state):
            self.heard()
            self.beat()

    def _enter(self, state: PeerState) -> bool:
        """Return False if the table has no such transition."""
        if state not in TRANSITIONS[self.state]:
            return False
        self.state, self.server = state, ""
        return True

    def _fail(self, reason: str, refused: bool) -> None:
        self.problem = LinkProblem(f"{self.name}: {reason}", refused)
        if refused:
            self._seldom.warning(f"LinkRefused: {self.problem.message}")

    def _on_end(self, failure: str | None) -> None:
        broke = "the connection broke" if self.server else "nothing answers there yet"
        self.drop(failure or broke, refused=failure is not None)
