"""Admits the holders of the engines' CURVE key to the frontend's ROUTER (ZMQ's authentication protocol, RFC 27).

For each connection, ZMQ sends a request to a socket with a fixed name in the same context. Without a handler on
that socket a CURVE server would admit every client, so the ROUTER is set to require an answer (`secure`).
"""

import hmac
from collections.abc import Callable

import zmq
from zmq.utils import z85

from kvasir.link.frontend_end.loop_socket import LoopSocket
from kvasir.wire.keys import LinkKeys

_ENDPOINT = "inproc://zeromq.zap.01"
_DOMAIN = b"kvasir"


class ClientKeyCheck:
    """Admits connections with the engines' key, and rejects others."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: LinkKeys, refused: Callable[[str], None]
    ) -> None:
        """`refused` is called with the address of each peer that was not admitted."""
        self._admitted = z85.decode(keys.peer_public)
        self._refused = refused
        socket = context.socket(zmq.REP)
        socket.linger = 0
        socket.bind(_ENDPOINT)
        self._socket = LoopSocket(socket, self._on_request)

    def close(self) -> None:
        self._socket.close()

    def _on_request(self, frames: list[bytes]) -> None:
        # version, request id, domain, address, identity, mechanism, credentials of the mechanism
        request_id = frames[1] if len(frames) > 1 else b""
        admitted = (
            len(frames) == 7
            and frames[2] == _DOMAIN
            and frames[5] == b"CURVE"
            and hmac.compare_digest(frames[6], self._admitted)
        )
        status, text = (b"200", b"OK") if admitted else (b"400", b"this key is not admitted")
        self._socket.send([b"1.0", request_id, status, text, b"", b""])
        if not admitted:
            self._refused(frames[3].decode(errors="replace") if len(frames) > 3 else "an unknown address")


def secure(socket: zmq.Socket[bytes], keys: LinkKeys) -> None:
    """Make the socket a CURVE server that admits only connections that a ClientKeyCheck admits."""
    socket.curve_server = True
    socket.curve_secretkey = keys.secret
    socket.zap_domain = _DOMAIN
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
