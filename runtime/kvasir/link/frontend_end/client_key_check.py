"""Admits to the frontend's ROUTER whoever holds the engines' CURVE key (ZMQ's authentication protocol, RFC 27).

ZMQ asks over a socket of a fixed name in the same context for each connection; a CURVE server that nobody answers
for would admit any client, so the ROUTER also enforces that it is asked (`secure`).
"""

import hmac
from collections.abc import Callable

import zmq
from zmq.utils import z85

from kvasir.link.frontend_end.loop_socket import LoopSocket
from kvasir.link.keys import LinkKeys

_ENDPOINT = "inproc://zeromq.zap.01"
_DOMAIN = b"kvasir"


class ClientKeyCheck:
    """Answers for every connection whether its key is the engines'."""

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
        # version, request id, domain, address, identity, mechanism, then the mechanism's credentials
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
    """Make the socket a CURVE server that admits nobody unless a ClientKeyCheck says so."""
    socket.curve_server = True
    socket.curve_secretkey = keys.secret
    socket.zap_domain = _DOMAIN
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
