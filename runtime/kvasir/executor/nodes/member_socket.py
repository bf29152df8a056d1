"""One connection of a member to its leader: a socket, and the monitor that reports its end."""

import itertools
from collections.abc import Callable
from typing import Final

import zmq

from kvasir.executor.nodes.leader_socket import MAX_NODE_MESSAGE_BYTES
from kvasir.executor.nodes.node_messages import FromMember, encode
from kvasir.wire.curve import make_client
from kvasir.wire.keys import LinkKeys
from kvasir.wire.reactor import Reactor
from kvasir.wire.sockets import handshake_failure, limit, open_monitor, parse_event

_NEVER_MS: Final = 24 * 3600 * 1000
"""Time until ZMQ itself would connect again: a socket serves one connection."""
_names = itertools.count()


class MemberSocket:
    """Belongs to the thread of the reactor."""

    def __init__(
        self,
        reactor: Reactor,
        endpoint: str,
        keys: LinkKeys | None,
        received: Callable[[], object],
        ended: Callable[[], object],
    ) -> None:
        """Begin to connect. `received` is called when messages wait, `ended` when the monitor has an event."""
        self._reactor = reactor
        socket = self._socket = reactor.context.socket(zmq.DEALER)
        limit(socket)
        socket.maxmsgsize = MAX_NODE_MESSAGE_BYTES
        socket.ipv6 = "[" in endpoint
        socket.reconnect_ivl = _NEVER_MS
        if keys is not None:
            make_client(socket, keys)
        self._monitor = open_monitor(reactor.context, socket, f"leader-{next(_names)}")
        reactor.watch(socket, received)
        reactor.watch(self._monitor, ended)
        try:
            socket.connect(endpoint)
        except BaseException:
            self.close()
            raise

    def send(self, incarnation: str, message: FromMember) -> None:
        """Send without blocking. Raises zmq.ZMQError."""
        self._socket.send_multipart(encode(incarnation, message), zmq.NOBLOCK)

    def receive(self) -> list[bytes]:
        """Return the next message. Raises zmq.Again if none waits."""
        return self._socket.recv_multipart(zmq.NOBLOCK)

    def is_handshake_failure(self) -> bool:
        """Read the event of the monitor, and return whether the keys did not fit."""
        return handshake_failure(*parse_event(self._monitor.recv_multipart(zmq.NOBLOCK))) is not None

    def close(self, linger: float = 0.0) -> None:
        """Close the connection; messages that were sent have `linger` seconds to leave."""
        for each in (self._socket, self._monitor):
            self._reactor.unwatch(each)
        self._socket.disable_monitor()
        self._socket.close(linger=int(linger * 1000))
        self._monitor.close()
