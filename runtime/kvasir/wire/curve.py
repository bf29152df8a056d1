"""Encryption between the nodes of an engine: CURVE with the key pair that all engines of the service share.

The leader is the server and a member the client. Each side holds the same pair and admits only that key, so a node
proves that it belongs to an engine of the service. On loopback the connection may do without keys.
"""

import hmac
import ipaddress
import logging
from typing import Final

import zmq
from zmq.utils import z85

from kvasir.config.options import ConfigError
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.keys import LinkKeys
from kvasir.wire.reactor import Reactor

log = logging.getLogger(__name__)

_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"kvasir-nodes"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host).is_loopback
    except ValueError:
        return False


def require_keys(host: str, has_keys: bool) -> None:
    """Raise ConfigError if the steps would leave this machine without encryption."""
    if not has_keys and not is_loopback(host):
        raise ConfigError(
            f"--master-addr {host} leaves this machine and the steps would not be encrypted: give --link-keys, the "
            "directory with the keys of the service's engines, or use a loopback address"
        )


def make_server(socket: "zmq.Socket[bytes]", keys: LinkKeys) -> None:
    """Make the leader's socket admit only connections that a NodeKeyCheck admits."""
    socket.curve_server = True
    socket.curve_secretkey = keys.secret
    socket.zap_domain = _DOMAIN
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def make_client(socket: "zmq.Socket[bytes]", keys: LinkKeys) -> None:
    """Make a member's socket connect only to a leader that holds the same key pair."""
    socket.curve_publickey = socket.curve_serverkey = keys.public
    socket.curve_secretkey = keys.secret


class NodeKeyCheck:
    """Admits connections with the engines' key (ZMQ's authentication protocol, RFC 27), in the reactor's thread."""

    def __init__(self, reactor: Reactor, keys: LinkKeys) -> None:
        self._admitted = z85.decode(keys.public)
        self._seldom = SeldomLog(log)
        self._reactor = reactor
        self._socket = reactor.context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP_ENDPOINT)
        reactor.watch(self._socket, self._on_request)

    def close(self) -> None:
        self._reactor.unwatch(self._socket)
        self._socket.close()

    def _on_request(self) -> None:
        frames = self._socket.recv_multipart(zmq.NOBLOCK)
        # version, request id, domain, address, identity, mechanism, credentials of the mechanism
        admitted = (
            len(frames) == 7
            and frames[2] == _DOMAIN
            and frames[5] == b"CURVE"
            and hmac.compare_digest(frames[6], self._admitted)
        )
        request_id = frames[1] if len(frames) > 1 else b""
        status, text = (b"200", b"OK") if admitted else (b"400", b"this key is not admitted")
        self._socket.send_multipart([b"1.0", request_id, status, text, b"", b""])
        if not admitted:
            address = frames[3].decode(errors="replace") if len(frames) > 3 else "an unknown address"
            self._seldom.warning(
                f"a node at {address} could not connect: its key is not the one in client.secret of this engine"
            )
