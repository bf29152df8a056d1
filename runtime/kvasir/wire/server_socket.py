"""A ROUTER socket that checks its clients' keys and watches their connections."""

import errno
import logging
import os
from collections.abc import Callable
from typing import Any, Final

import zmq

from kvasir.config.options import ConfigError
from kvasir.process.listening import IN_USE, has_ipv6, is_stale
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.address import LinkAddress, private_directory
from kvasir.wire.keys import KeyCheck, LinkKeys
from kvasir.wire.sockets import MAX_MESSAGE_BYTES, handshake_failure, limit, open_monitor, parse_event
from kvasir_contract.endpoints import ANY_HOST

PROBE_DELAYS: Final = (0.02, 0.2)  # seconds; ZMQ may report an end before it drops the connection

log = logging.getLogger(__name__)


class ServerSocket:
    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: LinkAddress,
        keys: LinkKeys | None,
        clients_key: str,
        on_broken: Callable[[], object] = lambda: None,
        *,
        burst: int = 0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        handshake_ms: int = 30_000,
    ) -> None:
        """Bind the address; the owner reads `router` and all sockets of `readers`. Raises ConfigError.

        `clients_key`: the file with it. `on_broken`: some connection has ended. `burst`: messages to one client at
        once.
        """
        self._clients_key = clients_key
        self._on_broken = on_broken
        self._seldom = SeldomLog(log)
        router = self.router = context.socket(zmq.ROUTER)
        limit(router, burst)
        router.maxmsgsize = max_message_bytes
        router.handshake_ivl = handshake_ms
        router.router_mandatory = True  # otherwise ZMQ silently drops messages to an unknown peer or a full queue
        router.router_handover = True  # a reconnecting client takes its identity over
        monitor = open_monitor(context, router, "router")
        self.readers: list[tuple[zmq.Socket[bytes], Callable[[list[bytes]], None]]] = [(monitor, self._on_event)]
        # Before clients can connect: ZMQ rejects a connection that no key check admits.
        self.encrypted = keys is not None and not address.is_ipc
        if keys is not None and self.encrypted:
            check = KeyCheck(router, keys, self._on_foreign_key)
            self.readers.append((check.socket, check.on_request))
        try:
            self.address = bind(router, address)
        except BaseException:
            self.close()
            raise

    def send(self, frames: list[Any], *, copy: bool = True) -> str | None:
        """Send without blocking, the identity first; return the error, or None."""
        try:
            self.router.send_multipart(frames, zmq.NOBLOCK, copy=copy)
        except zmq.ZMQError as error:
            return send_failure(error)
        return None

    def close(self, linger: float = 0.0) -> None:
        self.router.disable_monitor()
        self.router.close(linger=int(linger * 1000))
        for socket, _ in self.readers:
            socket.close(linger=0)

    def _on_event(self, frames: list[bytes]) -> None:
        event, value = parse_event(frames)
        failure = handshake_failure(event, value)
        if failure is None:
            self._on_broken()
        elif event != zmq.Event.HANDSHAKE_FAILED_AUTH:  # the key check reports it
            self._seldom.warning(f"LinkRefused: a client could not connect to {self.address}: {failure}")

    def _on_foreign_key(self, peer: str) -> None:
        self._seldom.warning(
            f"LinkRefused: a client at {peer} could not connect to {self.address}: its key is not the one in "
            f"{self._clients_key}"
        )


def send_failure(error: zmq.ZMQError) -> str:
    return "it does not read: its queue is full" if isinstance(error, zmq.Again) else "its connection broke"


def bind(socket: zmq.Socket[bytes], address: LinkAddress) -> str:
    """Return the address for peers, with the real port instead of 0. Raises ConfigError."""
    if address.is_ipc:
        private_directory(address)
        if is_stale(address.path):
            os.unlink(address.path)
        elif os.path.lexists(address.path):  # ZMQ would unlink it
            raise ConfigError(f"{address.flag} cannot be bound: {IN_USE}")
        endpoint = address.endpoint()
    else:
        socket.ipv6 = ":" in address.host or (address.host == ANY_HOST and has_ipv6())
        # ZMQ writes "any free port" as a star.
        endpoint = address.endpoint() if address.port else address.endpoint().removesuffix("0") + "*"
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        reason = "another process has it; choose another one" if error.errno == errno.EADDRINUSE else str(error)
        raise ConfigError(f"{address.flag} cannot be bound: {reason}") from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
