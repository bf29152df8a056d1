"""The socket to which the members of an engine connect."""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
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
from kvasir.wire.bind import bind
from kvasir.wire.curve import KeyCheck
from kvasir.wire.keys import load_shared_keys
from kvasir.wire.reactor import Reactor
from kvasir.wire.sockets import handshake_failure, limit, open_monitor, parse_event
from kvasir_contract.endpoints import ANY_HOST

log = logging.getLogger(__name__)

MAX_NODE_MESSAGE_BYTES: Final = MAX_FRAME_BYTES + 2**20
LINGER_SECONDS: Final = 0.5
_BATCH: Final = 128
# ZMQ may report an end before it drops the route.
_PROBE_SECONDS: Final = (0.0, 0.02, 0.2)


class Peer(NamedTuple):
    identity: bytes
    address: str


class LeaderSocket:
    """Belongs to the leader's thread, except `post`."""

    def __init__(
        self,
        config: NodesConfig,
        link: LinkConfig,
        incarnation: str,
        on_message: Callable[[Peer, str, FromMember], None],
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
        router = self._router = reactor.context.socket(zmq.ROUTER)
        limit(router)
        router.maxmsgsize = MAX_NODE_MESSAGE_BYTES
        router.router_mandatory = True
        self._key_check = None if keys is None else KeyCheck(router, keys, self._on_foreign_key)
        if self._key_check is not None:
            reactor.watch(self._key_check.socket, self._key_check.receive)
        self._monitor = open_monitor(reactor.context, router, "nodes")
        reactor.watch(router, self._receive)
        reactor.watch(self._monitor, self._on_event)
        # Members may use an address that the name does not give here.
        host = named.host if named.is_loopback else ANY_HOST
        try:
            bind(router, tcp_address(host, named.port, "--master-port", str(named.port)))
        except BaseException:
            self.close()
            raise

    def post(self, command: Callable[[], None]) -> None:
        self._reactor.post(command)

    def wait(self, until: float) -> None:
        due = min([until, *self._probes])
        self._reactor.wait(due - time.monotonic())
        now = time.monotonic()
        if self._probes and self._probes[0] <= now:
            while self._probes and self._probes[0] <= now:
                self._probes.popleft()
            self._on_lost()

    def send(self, identity: bytes, message: FromLeader) -> str | None:
        """Send without blocking; return the error, or None."""
        try:
            self._router.send_multipart([identity, *encode(self._incarnation, message)], zmq.NOBLOCK)
        except zmq.Again:
            return "it does not read: its queue is full"
        except zmq.ZMQError:
            return "its connection broke"
        return None

    def receive_all(self) -> None:
        while self._receive():
            pass

    def close(self) -> None:
        self._router.disable_monitor()
        for each in (self._router, self._monitor):
            self._reactor.unwatch(each)
        self._monitor.close()
        self._router.close(linger=int(LINGER_SECONDS * 1000))
        if self._key_check is not None:
            self._reactor.unwatch(self._key_check.socket)
            self._key_check.socket.close()
        self._reactor.close()

    def _receive(self) -> bool:
        for _ in range(_BATCH):
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            peer = Peer(identity.bytes, _address_of(frames))
            try:
                incarnation, message = decode_from_member([frame.bytes for frame in frames])
            except NodeProtocolError as error:
                self._on_refuse(f"a node at {peer.address} sent a malformed message: {error}")
                self.send(peer.identity, NodeRefused(str(error)))
                continue
            self._on_message(peer, incarnation, message)
        return True

    def _on_foreign_key(self, peer: str) -> None:
        self._on_refuse(
            f"a node at {peer} could not connect: its key is not the one in client.secret of this engine"
        )

    def _on_event(self) -> None:
        failure = handshake_failure(*parse_event(self._monitor.recv_multipart(zmq.NOBLOCK)))
        if failure is not None:
            self._on_refuse(
                "a node could not connect: check that it has the --link-keys of this engine, or none if this one "
                "has none"
            )
            return
        now = time.monotonic()
        self._probes = deque(now + seconds for seconds in _PROBE_SECONDS)


def _address_of(frames: "list[zmq.Frame]") -> str:
    with suppress(zmq.ZMQError, IndexError, ValueError):
        return plain(str(frames[-1].get("Peer-Address")))
    return "an unknown address"
