"""The link's CURVE keys: two key pairs, and which half of them each side holds.

A directory of keys is what the Secret `<name>-link` looks like when it is mounted, one item per file, 40 Z85
characters each:

    frontends   server.secret   client.public
    engines     client.secret   server.public

A side's own public key is computed from its secret one.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq

from kvasir.config.options import ConfigError

SERVER_SECRET: Final = "server.secret"
SERVER_PUBLIC: Final = "server.public"
CLIENT_SECRET: Final = "client.secret"
CLIENT_PUBLIC: Final = "client.public"

FRONTEND_FILES: Final = (SERVER_SECRET, CLIENT_PUBLIC)
ENGINE_FILES: Final = (CLIENT_SECRET, SERVER_PUBLIC)


@dataclass(frozen=True)
class LinkKeys:
    """One side's keys, in Z85."""

    public: bytes
    secret: bytes = field(repr=False)
    peer_public: bytes
    """What the other side must prove to be."""


def load_frontend_keys(directory: str) -> LinkKeys:
    """Raises ConfigError for a missing or malformed file."""
    return _load(Path(directory), *FRONTEND_FILES)


def load_engine_keys(directory: str) -> LinkKeys:
    """Raises ConfigError for a missing or malformed file."""
    return _load(Path(directory), *ENGINE_FILES)


def new_link_keys() -> dict[str, str]:
    """Two fresh key pairs by file name."""
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    keys = {
        SERVER_SECRET: server_secret,
        SERVER_PUBLIC: server_public,
        CLIENT_SECRET: client_secret,
        CLIENT_PUBLIC: client_public,
    }
    return {name: key.decode() for name, key in keys.items()}


def make_link_keys(server_directory: Path, client_directory: Path) -> None:
    """Write fresh keys: the frontends' into the first directory, the engines' into the second; only this user can
    read either."""
    keys = new_link_keys()
    for directory, names in ((server_directory, FRONTEND_FILES), (client_directory, ENGINE_FILES)):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in names:
            file = directory / name
            file.unlink(missing_ok=True)
            file.touch(mode=0o600)
            file.write_text(keys[name])


def _load(directory: Path, secret_name: str, peer_name: str) -> LinkKeys:
    secret = _read(directory / secret_name)
    return LinkKeys(public=zmq.curve_public(secret), secret=secret, peer_public=_read(directory / peer_name))


def _read(file: Path) -> bytes:
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"--link-keys: {file} cannot be read ({error.strerror}); a frontend needs "
            f"{' and '.join(FRONTEND_FILES)}, an engine {' and '.join(ENGINE_FILES)}"
        ) from error
    try:
        zmq.curve_public(key)  # decodes it: any 32 bytes are a key
    except (zmq.ZMQError, ValueError) as error:
        raise ConfigError(f"--link-keys: {file} does not hold a key of 40 Z85 characters") from error
    return key
