"""One connection of an engine to one frontend.

A broken connection's queue is dropped before a new socket sends Hello, so no earlier output follows the new Hello.
"""

import itertools
import logging
import time
from typing import Final, Protocol

import zmq

from kvasir.link.codec import Agreement, Codec, UnknownMessage, encode
from kvasir.link.engine_end.announced_engine import AnnouncedEngine
from kvasir.link.engine_end.conversation import LinkProblem, State
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
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.client_socket import ClientSocket
from kvasir.wire.keys import LinkKeys
from kvasir.wire.reactor import Reactor

MIN_RETRY_SECONDS: Final = 0.05
MAX_RETRY_SECONDS: Final = 1.0  # they double

REFUSED_RETRY_SECONDS: Final = 30.0  # the frontend may be replaced by then

log = logging.getLogger(__name__)
_names = itertools.count()


class Conversation(Protocol):
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
        link: Conversation,
        codec: Codec,
    ) -> None:
        self.endpoint = endpoint
        self.wanted = True  # False once the address is not listed: a live connection stays, but is not opened again
        self.state = State.CLOSED
        self.frontend: str | None = None  # its incarnation, while WELCOMED
        self.last_frontend: str | None = None
        self.agreement = Agreement(codec)
        self.problem: LinkProblem | None = None
        self.retry_at = 0.0  # the next attempt (CLOSED), or the next Hello (REFUSED)
        self._engine = engine
        self._keys = keys
        self._timeout = timeout
        self._reactor = reactor
        self._link = link
        self._retry = MIN_RETRY_SECONDS
        self._last_seen = 0.0
        self._handshake_failure: LinkProblem | None = None
        self._seldom = SeldomLog(log)
        self._socket: ClientSocket | None = None

    # ------------------------------------------------------------------------------------- driven by the link

    def open(self, now: float) -> None:
        self._handshake_failure = None
        probing = self.last_frontend is None and self._link.must_probe
        try:
            self._connect(probing)
        except zmq.ZMQError as error:  # for example, no file descriptors left
            self.drop(f"{self.endpoint} cannot be connected to: {error}")
            return
        if probing:
            self._probe(now)
        else:
            self._greet(now)

    def tick(self, now: float, late: float) -> None:
        """`late`: seconds that this process was blocked."""
        self._last_seen += late
        silence = now - self._last_seen
        if self.state in (State.GREETING, State.PROBING) and silence > self._timeout:
            self.drop(f"{self.endpoint} has not answered for {silence:.1f} s")
        elif self.state is State.PROBING:
            self.show(Heartbeat())
        elif self.state is State.GREETING:
            self.show(self._engine.greeting())
        elif self.state is State.WELCOMED and silence > self._timeout:
            self.drop(f"it was silent for {silence:.1f} s")
        elif self.state is State.WELCOMED:
            self.show(self._engine.heartbeat(self._link.shows_load(self)))
        elif self.state is State.REFUSED and now >= self.retry_at:
            self._greet(now)

    def show(self, message: FromEngine | None) -> None:
        """Send without blocking, if the frontend's version understands it. A full queue loses the frontend."""
        if message is None or self._socket is None or not self.agreement.understands(message):
            return
        try:
            self._socket.send([encode(message)])
        except zmq.Again:
            self.drop("nothing can be sent to it: its queue is full, or the connection broke")

    def drop(self, reason: str, level: int = logging.WARNING) -> None:
        """Close the connection; a wanted one is tried again."""
        now = time.monotonic()
        failed = self.frontend is None
        if self.frontend is not None:
            log.log(level, "frontend %s at %s is lost: %s", self.frontend, self.endpoint, reason)
            self._retry = MIN_RETRY_SECONDS
        self.problem = self._handshake_failure or LinkProblem(reason)
        self.close()
        self.retry_at = now + self._retry
        self._retry = min(2 * self._retry, MAX_RETRY_SECONDS)
        self._part()
        if failed:
            self._link.failed(self)

    def close(self, linger: float = 0.0) -> None:
        self.state = State.CLOSED
        if self._socket is not None:
            self._socket.close(linger)
        self._socket = None

    # -------------------------------------------------------------------------------------- from the frontend

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            if len(frames) != 1:
                raise ProtocolError(f"a message of {len(frames)} frames instead of one")
            message = self.agreement.codec.decode_from_frontend(frames[0])
        except ProtocolError as error:
            self._seldom.warning(f"{self.endpoint} sent a malformed frame: {error}", about="malformed")
            self.drop(f"it sent a malformed frame: {error}")
            return
        if isinstance(message, Welcome):
            self._on_welcome(message)
        elif isinstance(message, Refused):
            self._on_refused(message)
        elif self.frontend is not None:  # otherwise it belongs to an earlier conversation
            self._last_seen = time.monotonic()
            self._on_message(self.frontend, message)

    def _on_message(self, frontend: str, message: FromFrontend | UnknownMessage) -> None:
        match message:
            case AddRequest() | Abort() | Call() | StartWave():
                self._link.received(self, frontend, message)
            case Heartbeat(saw_draining=True):
                self._link.saw_draining(frontend)
            case Goodbye():
                self.drop("it has shut down", logging.INFO)
            case UnknownMessage():
                self.agreement.skip(f"frontend {frontend}", message)

    def _on_welcome(self, message: Welcome) -> None:
        self._last_seen = time.monotonic()
        if self.frontend == message.frontend:
            return  # the answer to a Hello with a new phase
        self._part()
        self.agreement.begin(message.protocol)
        self.state = State.WELCOMED
        self.problem = None
        self.frontend = self.last_frontend = message.frontend
        log.info("on the link to %s at %s", message.frontend, self.endpoint)
        self._link.welcomed(self, message.frontend)
        for introduction in self._engine.introduction():
            self.show(introduction)
        if message.cache_events:
            self._link.wants_cache_events(message.frontend)

    def _on_refused(self, message: Refused) -> None:
        now = time.monotonic()
        if self.state is State.PROBING:
            if self._link.probed(self, message.frontend):
                self.close()
                self._connect()
                self._greet(now)
            return
        if message.retry:
            if self.state is State.WELCOMED:  # otherwise Hello was sent
                log.warning(
                    "frontend %s at %s asks to start over: %s", self.frontend, self.endpoint, message.reason
                )
                self._part()
                self._greet(now)
            return
        self.problem = LinkProblem(message.reason, refused=True)
        self._seldom.warning(f"LinkRefused: the frontend at {self.endpoint} rejects this engine: {message.reason}")
        self.state = State.REFUSED
        self.retry_at = now + REFUSED_RETRY_SECONDS
        self._part()

    # ------------------------------------------------------------------------------------------------- parts

    def _connect(self, probing: bool = False) -> None:
        # The latest connection with the engine's name takes the name over.
        name = self._engine.identity.incarnation
        self._socket = ClientSocket(
            self._reactor,
            self.endpoint,
            self._keys,
            self._on_frames,
            self._on_end,
            identity=f"{name}-probe-{next(_names)}" if probing else name,
        )

    def _probe(self, now: float) -> None:
        # A frontend that does not know the sender answers with its own name.
        self.state = State.PROBING
        self._last_seen = now
        self.show(Heartbeat())

    def _greet(self, now: float) -> None:
        self.state = State.GREETING
        self._last_seen = now
        self.show(self._engine.greeting())

    def _part(self) -> None:
        frontend, self.frontend = self.frontend, None
        if frontend is not None:
            self._link.lost(self, frontend)

    def _on_end(self, failure: str | None) -> None:
        if failure is not None:
            text = f"no connection to {self.endpoint}: {failure}"
            self.problem = self._handshake_failure = LinkProblem(text, refused=True)
            self._seldom.warning(f"LinkRefused: {text}")
            return
        if self.state in (State.GREETING, State.PROBING) and not self._handshake_failure:
            self._seldom.info(f"no frontend answers at {self.endpoint} yet")
        self.drop("the connection broke" if self.frontend else f"no frontend answers at {self.endpoint}")
