"""A member's connection to the leader, owned by a thread.

Before the Setup it connects again whenever there is no leader; after the Setup the member ends with it.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import zmq

from kvasir.config.nodes import NodesConfig
from kvasir.config.process_settings import LinkConfig
from kvasir.executor.nodes.leader_socket import LINGER_SECONDS, MAX_NODE_MESSAGE_BYTES
from kvasir.executor.nodes.node_messages import (
    Describe,
    Frame,
    FromLeader,
    FromMember,
    Joined,
    NodeGoodbye,
    NodeHeartbeat,
    NodeHello,
    NodeProtocolError,
    NodeRefused,
    NodeTerms,
    Setup,
    decode_from_leader,
    encode,
)
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.address import look_up, require_keys, tcp_address
from kvasir.wire.client_socket import ClientSocket
from kvasir.wire.heartbeats import HeartbeatClock
from kvasir.wire.keys import load_shared_keys
from kvasir.wire.reactor import Reactor

log = logging.getLogger(__name__)

MIN_RETRY_SECONDS: Final = 0.1
MAX_RETRY_SECONDS: Final = 2.0  # they double
_CLOSE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Begin:
    """Start the workers: all nodes are prepared."""

    setup: Setup
    leader_ip: str
    incarnation: str  # of the leader


@dataclass(frozen=True)
class Rejected:
    reason: str


@dataclass(frozen=True)
class LeaderLost:
    reason: str


LeaderEvent = Begin | Rejected | LeaderLost | Describe


class LeaderConnection:
    """Any thread may call the methods."""

    def __init__(
        self,
        config: NodesConfig,
        link: LinkConfig,
        terms: NodeTerms,
        deliver: Callable[[LeaderEvent], None],
        frame: Callable[[bytes], None],
        lookup: Callable[[str], frozenset[str]] = look_up,
    ) -> None:
        """`deliver` gets the events and `frame` the frames, in order, in the connection's thread. Raises
        ConfigError for keys that cannot be used.
        """
        self._config = config
        self._address = tcp_address(config.master_addr or "", config.master_port, "--master-addr")
        self._keys = load_shared_keys(link.link_keys) if link.link_keys else None
        require_keys(self._address, self._keys is not None)
        self._timeout = link.heartbeat_timeout
        self._terms = terms
        self._deliver = deliver
        self._frame = frame
        self._lookup = lookup
        # why this node has not joined; "" if it has; replaced as a whole
        self.problem: str = "the leader has not answered yet"
        self.is_refused = False  # the leader rejects this node or its key: do not start it again
        self._prepared = False
        self._reactor = Reactor()
        self._socket: ClientSocket | None = None
        self._leader_ip = ""
        self._incarnation = ""  # of the leader that this node has joined
        self._has_begun = False
        self._retry_at = 0.0
        self._retry = MIN_RETRY_SECONDS
        self._attempts = 0
        self._last_seen = 0.0
        self._seldom = SeldomLog(log)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def prepared(self) -> None:
        self._prepared = True
        self._reactor.post(self._greet)

    def send(self, message: FromMember) -> None:
        """Send soon; dropped while this node has not joined."""
        self._reactor.post(partial(self._send, message))

    def close(self) -> None:
        if not self._closed:
            self._reactor.post(self._end)
            if self._thread.is_alive():
                self._thread.join(timeout=_CLOSE_SECONDS)

    # ------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            log.exception("the connection to node 0 has failed")
            self._closed = True
            self._deliver(LeaderLost(f"the connection to node 0 has failed: {error!r}"))
        finally:
            self._disconnect(LINGER_SECONDS)
            self._reactor.close()

    def _serve(self) -> None:
        clock = HeartbeatClock(self._timeout, time.monotonic())
        while not self._closed:
            until = clock.due if self._socket is not None else min(clock.due, self._retry_at)
            self._reactor.wait(until - time.monotonic())
            now = time.monotonic()
            if self._socket is None and now >= self._retry_at and not self._closed:
                self._open()
            if now >= clock.due:
                self._tick(now, clock.tick(now))

    def _end(self) -> None:
        self._closed = True

    def _tick(self, now: float, late: float) -> None:
        if self._socket is None:
            return
        self._last_seen += late
        silence = now - self._last_seen
        if silence > self._timeout:
            self._drop(f"it has been silent for {silence:.1f} s")
        elif self._has_begun:
            self._send(NodeHeartbeat())
        else:
            self._greet()

    def _greet(self) -> None:
        if not self._has_begun:
            self._send(NodeHello(self._config.node_rank, self._terms, self._prepared, self._leader_ip))

    def _send(self, message: FromMember) -> None:
        if self._socket is None or not (self._incarnation or isinstance(message, NodeHello)):
            return
        try:
            self._socket.send(encode(self._incarnation, message))
        except zmq.ZMQError as error:
            self._socket.receive_all()  # one may have the cause
            if self._socket is not None:
                self._drop(f"nothing can be sent to it: {error}")

    # --------------------------------------------------------------------------------------------- the connection

    def _open(self) -> None:
        try:
            self._leader_ip = self._next_ip()
            self._connect(self._leader_ip)
        except (OSError, zmq.ZMQError) as error:
            self._drop(str(error))
            return
        self._greet()

    def _next_ip(self) -> str:
        """Return one of the leader's IP addresses, another one at each attempt. Raises OSError."""
        if self._address.is_loopback:
            return self._address.host
        found = sorted(self._lookup(self._address.host))
        if not found:
            raise OSError(f"{self._address.host} has no address yet")
        self._attempts += 1
        return found[self._attempts % len(found)]

    def _connect(self, ip: str) -> None:
        self._last_seen = time.monotonic()
        self._socket = ClientSocket(
            self._reactor,
            self._address.endpoint(ip),
            self._keys,
            self._on_frames,
            self._on_end,
            max_message_bytes=MAX_NODE_MESSAGE_BYTES,
        )

    def _disconnect(self, linger: float = 0.0) -> None:
        if self._socket is not None:
            self._socket.close(linger)
        self._socket = None

    def _drop(self, reason: str, *, is_refused: bool = False) -> None:
        """Close the connection: for good after the Setup."""
        at = f"node 0 at {self._address.host}, port {self._address.port}"
        had_joined, self._incarnation = bool(self._incarnation), ""
        self._disconnect()
        self.problem = f"{at}: {reason}"
        self.is_refused = is_refused
        if self._has_begun:
            self._deliver(LeaderLost(f"{at} is lost: {reason}"))
            self._closed = True
            return
        if had_joined:
            log.warning("%s has left: %s; this node joins it again", at, reason)
            self._retry = MIN_RETRY_SECONDS
        else:
            self._seldom.info(f"no connection to {self.problem}; another attempt follows")
        self._retry_at = time.monotonic() + self._retry
        self._retry = min(2 * self._retry, MAX_RETRY_SECONDS)

    def _on_end(self, failure: str | None) -> None:
        if failure is not None:
            text = "the handshake failed: check that both nodes have the same --link-keys, or none"
            self._drop(text, is_refused=True)
        else:
            self._drop("the connection broke" if self._incarnation else "nothing answers there yet")

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            incarnation, message = decode_from_leader(frames)
        except NodeProtocolError as error:
            self._drop(f"it sent a malformed message: {error}")
        else:
            self._on_message(incarnation, message)

    def _on_message(self, incarnation: str, message: FromLeader) -> None:
        self._last_seen = time.monotonic()
        if isinstance(message, NodeRefused):
            self._reject(message.reason)
            return
        if isinstance(message, Joined) and not self._has_begun:
            self._join(incarnation)
            return
        if incarnation != self._incarnation:
            self._drop(
                f"it is incarnation {incarnation} now, and this node has joined {self._incarnation or 'none'}"
            )
            return
        match message:
            case Frame(body):
                self._frame(body)
            case Setup():
                self._has_begun = True
                self._deliver(Begin(message, self._leader_ip, incarnation))
            case Describe():
                self._deliver(message)
            case NodeGoodbye(reason):
                self._drop(f"it has ended: {reason}")

    def _join(self, incarnation: str) -> None:
        if incarnation != self._incarnation:
            log.info("joined incarnation %s of node 0 at %s", incarnation, self._address.host)
        self._incarnation = incarnation
        self._retry = MIN_RETRY_SECONDS
        self.problem = ""
        self.is_refused = False

    def _reject(self, reason: str) -> None:
        self._disconnect()
        self._closed = True
        self.problem = f"node 0 at {self._address.host}, port {self._address.port} rejects this node: {reason}"
        self.is_refused = True
        if not self._prepared:
            log.warning("%s; this node ends when it has read its model", self.problem)
        self._deliver(Rejected(self.problem))
