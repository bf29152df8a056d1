"""The socket to which the members of an engine connect."""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import zmq

from kvasir.config.nodes import NodesConfig
from kvasir.config.process_settings import LinkConfig
from kvasir.executor.nodes.addresses import plain
from kvasir.executor.nodes.node_messages import (
    FromLeader,
    FromMember,
    NodeProtocolError,
    NodeRefused,
    decode_from_member,
    encode,
)
from kvasir.executor.shared_memory.ring import MAX_FRAME_BYTES
from kvasir.wire.address import require_keys, tcp_address
from kvasir.wire.keys import load_shared_keys
from kvasir.wire.reactor import Reactor
from kvasir.wire.server_socket import PROBE_DELAYS, ServerSocket
from kvasir_contract.endpoints import ANY_HOST

log = logging.getLogger(__name__)

MAX_NODE_MESSAGE_BYTES: Final = MAX_FRAME_BYTES + 2**20
LINGER_SECONDS: Final = 0.5
_BATCH: Final = 128


class Sender(NamedTuple):
    identity: bytes
    address: str


@dataclass
class MemberRecord:
    """A connection of a member; only the leader's thread changes it."""

    identity: bytes  # new for each connection
    node_rank: int
    address: str
    leader_address: str  # as the member has connected
    prepared: bool = False
    has_failed: bool = False  # its end is expected
    last_seen: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"node {self.node_rank} ({self.address})"


class LeaderSocket:
    """Belongs to the leader's thread, except `post`."""

    def __init__(
        self,
        config: NodesConfig,
        link: LinkConfig,
        incarnation: str,
        on_message: Callable[[Sender, str, FromMember], None],
        on_refuse: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Bind the port. `on_lost`: some connection has ended. Raises ConfigError."""
        keys = load_shared_keys(link.link_keys) if link.link_keys else None
        named = tcp_address(config.master_addr or "", config.master_port, "--master-addr")
        require_keys(named, keys is not None)
        self._incarnation = incarnation
        self._on_message = on_message
        self._on_refuse = on_refuse
        self._on_lost = on_lost
        self._probes: deque[float] = deque()
        reactor = self._reactor = Reactor()
        # Members may use an address that the name does not give here.
        host = named.host if named.is_loopback else ANY_HOST
        address = tcp_address(host, named.port, "--master-port", str(named.port))
        try:
            self._server = ServerSocket(
                reactor.context,
                address,
                keys,
                "client.secret of this engine",
                self._plan_probes,
                max_message_bytes=MAX_NODE_MESSAGE_BYTES,
            )
        except BaseException:
            reactor.close()
            raise
        reactor.watch(self._server.router, self._receive)
        for socket, handle in self._server.readers:
            reactor.read(socket, handle)

    def post(self, command: Callable[[], None]) -> None:
        self._reactor.post(command)

    def wait(self, until: float) -> None:
        due = min([until, *self._probes])
        self._reactor.wait(due - time.monotonic())
        if due != until and due <= time.monotonic():
            self._probes.popleft()
            self._on_lost()

    def send(self, identity: bytes, message: FromLeader) -> str | None:
        """Send without blocking; return the error, or None."""
        return self._server.send([identity, *encode(self._incarnation, message)])

    def receive_all(self) -> None:
        while self._receive():
            pass

    def close(self) -> None:
        self._server.close(LINGER_SECONDS)
        self._reactor.close()

    def _receive(self) -> bool:
        for _ in range(_BATCH):
            try:
                identity, *frames = self._server.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            peer = Sender(identity.bytes, _address_of(frames))
            try:
                incarnation, message = decode_from_member([frame.bytes for frame in frames])
            except NodeProtocolError as error:
                self._on_refuse(f"a node at {peer.address} sent a malformed message: {error}")
                self.send(peer.identity, NodeRefused(str(error)))
                continue
            self._on_message(peer, incarnation, message)
        return True

    def _plan_probes(self) -> None:
        now = time.monotonic()
        self._probes = deque(now + seconds for seconds in (0.0, *PROBE_DELAYS))


def _address_of(frames: "list[zmq.Frame]") -> str:
    with suppress(zmq.ZMQError, IndexError, ValueError):
        return plain(str(frames[-1].get("Peer-Address")))
    return "an unknown address"
