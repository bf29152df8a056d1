"""A DEALER socket for exactly one connection to a server."""

import itertools
import time
from collections.abc import Callable
from typing import Any, Final

import zmq

from kvasir.wire.keys import LinkKeys, make_client
from kvasir.wire.reactor import Reactor
from kvasir.wire.sockets import MAX_MESSAGE_BYTES, handshake_failure, limit, open_monitor, parse_event

# ZMQ must not connect again. Not -1 (never): then the end of a connection drops unread messages.
_NEVER_MS: Final = 24 * 3600 * 1000

BATCH: Final = 128
# other sockets have their turn after either limit
BATCH_SECONDS: Final = 0.02

_names = itertools.count()


class ClientSocket:
    def __init__(
        self,
        reactor: Reactor,
        endpoint: str,
        keys: LinkKeys | None,
        on_frames: Callable[[list[Any]], object],
        on_end: Callable[[str | None], object],
        *,
        identity: str = "",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        connect_seconds: float = 0.0,
        copy: bool = True,
    ) -> None:
        """Begin to connect. Raises zmq.ZMQError.

        `on_frames` gets each message, as bytes; with `copy` False as zmq.Frame. `on_end` follows the last one, with
        the reason if the handshake failed. Both may call `close`.
        """
        self._reactor = reactor
        self._on_frames = on_frames
        self._on_end = on_end
        self._copy = copy
        self._is_ipc = endpoint.startswith("ipc:")
        socket = self._socket = reactor.context.socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            limit(socket)
            socket.maxmsgsize = max_message_bytes
            socket.ipv6 = "[" in endpoint
            socket.reconnect_ivl = _NEVER_MS
            socket.connect_timeout = int(connect_seconds * 1000)
            if identity:
                socket.routing_id = identity.encode()
            if keys is not None:
                make_client(socket, keys)
            monitor = self._monitor = open_monitor(reactor.context, socket, f"client-{next(_names)}", begin=True)
            reactor.watch(socket, self._receive)
            reactor.read(monitor, self._on_event)
            socket.connect(endpoint)
        except BaseException:
            self.close()
            raise

    def send(self, frames: list[bytes]) -> None:
        """Raises zmq.ZMQError; zmq.Again if the queue is full."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def receive_all(self) -> None:
        while self._receive():
            pass

    def close(self, linger: float = 0.0) -> None:
        self._reactor.release(id(self))
        self._reactor.unwatch(self._socket)
        self._socket.disable_monitor()
        self._socket.close(linger=int(linger * 1000))
        if self._monitor is not None:
            self._reactor.unwatch(self._monitor)
            self._monitor.close()

    def _receive(self) -> bool:
        end = time.monotonic() + BATCH_SECONDS
        for _ in range(BATCH):
            if self._socket.closed:
                return False
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=self._copy)
            except zmq.Again:
                return False
            self._on_frames(frames)
            if time.monotonic() >= end:
                break
        return True

    def _on_event(self, frames: list[bytes]) -> None:
        event, value = parse_event(frames)
        if event == zmq.Event.CONNECTED:
            self._reactor.hold(id(self), value)
            return
        failure = handshake_failure(event, value)
        if self._is_ipc and event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            failure = None  # there are no keys on such sockets: the server has just ended
        if failure is None:
            self.receive_all()
        if not self._socket.closed:
            self._on_end(failure)
