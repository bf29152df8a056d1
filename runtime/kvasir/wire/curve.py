"""CURVE on ZMQ sockets: a server admits only holders of the private key to LinkKeys.peer_public."""

import hmac
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils import z85

from kvasir.wire.keys import LinkKeys

_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"kvasir"


def make_client(socket: "zmq.Socket[bytes]", keys: LinkKeys) -> None:
    socket.curve_secretkey = keys.secret
    socket.curve_publickey = keys.public
    socket.curve_serverkey = keys.peer_public


class KeyCheck:
    """Makes a socket a CURVE server, and answers ZMQ's request about each new connection (ZAP, RFC 27).

    Call `on_request` with each message of `socket`. One check per context.
    """

    def __init__(self, server: "zmq.Socket[bytes]", keys: LinkKeys, on_rejected: Callable[[str], object]) -> None:
        # `server` must not be bound yet. `on_rejected` gets the address of each rejected peer.
        self._admitted = z85.decode(keys.peer_public)
        self._on_rejected = on_rejected
        self.socket = server.context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP_ENDPOINT)
        server.curve_server = True
        server.curve_secretkey = keys.secret
        server.zap_domain = _DOMAIN
        # Otherwise ZMQ admits every client while there is no handler.
        server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def on_request(self, frames: list[bytes]) -> None:
        # the fields of RFC 27's request
        admitted = (
            len(frames) == 7
            and frames[2] == _DOMAIN
            and frames[5] == b"CURVE"
            and hmac.compare_digest(frames[6], self._admitted)
        )
        request_id = frames[1] if len(frames) > 1 else b""
        status, text = (b"200", b"OK") if admitted else (b"400", b"this key is not admitted")
        self.socket.send_multipart([b"1.0", request_id, status, text, b"", b""])
        if not admitted:
            self._on_rejected(frames[3].decode(errors="replace") if len(frames) > 3 else "an unknown address")
