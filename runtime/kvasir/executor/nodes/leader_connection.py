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
from kvasir.wire.address import look_up, require_keys, tcp_address
from kvasir.wire.heartbeats import HeartbeatClock
from kvasir.wire.keys import load_shared_keys
from kvasir.wire.peer import Peer, PeerState
from kvasir.wire.reactor import Reactor

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = (0.1, 2.0)
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
        self._prepared = False
        self._reactor = Reactor()
        name = f"node 0 at {self._address.host}, port {self._address.port}"
        self._peer = Peer(name, self._timeout, RETRY_SECONDS, self._on_frames, self._on_lost, self._beat)
        self._leader_ip = ""
        self._has_begun = False
        self._attempts = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    @property
    def problem(self) -> str:
        """Return why this node has not joined; "" if it has."""
        if self._peer.server:
            return ""
        problem = self._peer.problem
        return "the leader has not answered yet" if problem is None else problem.message

    @property
    def is_refused(self) -> bool:
        """Return whether the leader rejects this node, or its key: do not start it again."""
        problem = self._peer.problem
        return problem is not None and problem.refused

    def start(self) -> None:
        self._thread.start()

    def prepared(self) -> None:
        self._prepared = True
        self._reactor.post(self._peer.beat)

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
            self._peer.close(LINGER_SECONDS)
            self._reactor.close()

    def _serve(self) -> None:
        clock, peer = HeartbeatClock(self._timeout, time.monotonic()), self._peer
        while not self._closed:
            until = min(clock.due, peer.retry_at) if peer.state is PeerState.CLOSED else clock.due
            self._reactor.wait(until - time.monotonic())
            now = time.monotonic()
            if peer.state is PeerState.CLOSED and now >= peer.retry_at and not self._closed:
                self._open()
            if now >= clock.due:
                peer.tick(now, clock.tick(now))

    def _end(self) -> None:
        self._closed = True

    def _beat(self, state: PeerState) -> None:
        if self._has_begun:
            self._send(NodeHeartbeat())
        else:
            self._send(NodeHello(self._config.node_rank, self._terms, self._prepared, self._leader_ip))

    def _send(self, message: FromMember) -> None:
        if self._peer.server or isinstance(message, NodeHello):
            self._peer.send(encode(self._peer.server, message))

    # --------------------------------------------------------------------------------------------- the connection

    def _open(self) -> None:
        try:
            self._leader_ip = self._next_ip()
        except OSError as error:
            self._peer.drop(str(error))
        else:
            self._peer.open(
                self._reactor,
                self._address.endpoint(self._leader_ip),
                self._keys,
                max_message_bytes=MAX_NODE_MESSAGE_BYTES,
            )

    def _next_ip(self) -> str:
        """Return one of the leader's IP addresses, another one at each attempt. Raises OSError."""
        if self._address.is_loopback:
            return self._address.host
        found = sorted(self._lookup(self._address.host))
        if not found:
            raise OSError(f"{self._address.host} has no address yet")
        self._attempts += 1
        return found[self._attempts % len(found)]

    def _on_lost(self, leader: str, reason: str) -> None:
        if self._has_begun:
            self._deliver(LeaderLost(f"{self._peer.name} is lost: {reason}"))
            self._closed = True

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            incarnation, message = decode_from_leader(frames)
        except NodeProtocolError as error:
            self._peer.drop(f"it sent a malformed message: {error}")
        else:
            self._on_message(incarnation, message)

    def _on_message(self, incarnation: str, message: FromLeader) -> None:
        self._peer.heard()
        joined = self._peer.server
        if isinstance(message, NodeRefused):
            self._reject(message.reason)
            return
        if isinstance(message, Joined) and not self._has_begun:
            self._join(incarnation)
            return
        if incarnation != joined:
            self._peer.drop(f"it is incarnation {incarnation} now, and this node has joined {joined or 'none'}")
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
                self._peer.drop(f"it has ended: {reason}")

    def _join(self, incarnation: str) -> None:
        if incarnation != self._peer.server:
            log.info("joined incarnation %s of node 0 at %s", incarnation, self._address.host)
        self._peer.agree(incarnation)

    def _reject(self, reason: str) -> None:
        self._peer.refuse(f"it rejects this node: {reason}")
        self._closed = True
        if not self._prepared:
            log.warning("this node ends when it has read its model")
        self._deliver(Rejected(self.problem))
