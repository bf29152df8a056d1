"""CURVE keys. A directory, like the Secret `<name>-link`, has one key of 40 Z85 characters per file:

frontends   server.secret   client.public
engines     client.secret   server.public
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from kvasir.config.options import ConfigError
from kvasir_contract.environment import ENGINE_KEY_FILES, FRONTEND_KEY_FILES


@dataclass(frozen=True)
class LinkKeys:
    public: bytes
    secret: bytes = field(repr=False)
    peer_public: bytes


def load_frontend_keys(directory: str) -> LinkKeys:
    return _load(Path(directory), *FRONTEND_KEY_FILES)


def load_engine_keys(directory: str) -> LinkKeys:
    """Raises ConfigError for a missing or malformed file."""
    return _load(Path(directory), *ENGINE_KEY_FILES)


def load_shared_keys(directory: str) -> LinkKeys:
    """Return the pair that all engines of a service share."""
    keys = load_engine_keys(directory)
    return replace(keys, peer_public=keys.public)


def _load(directory: Path, secret_name: str, peer_name: str) -> LinkKeys:
    secret = _read(directory / secret_name)
    return LinkKeys(public=zmq.curve_public(secret), secret=secret, peer_public=_read(directory / peer_name))


def _read(file: Path) -> bytes:
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"--link-keys: {file} cannot be read ({error.strerror}); a frontend needs "
            f"{' and '.join(FRONTEND_KEY_FILES)}, an engine {' and '.join(ENGINE_KEY_FILES)}"
        ) from error
    try:
        zmq.curve_public(key)  # any 32 bytes are a key
    except (zmq.ZMQError, ValueError) as error:
        raise ConfigError(f"--link-keys: {file} does not hold a key of 40 Z85 characters") from error
    return key


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
