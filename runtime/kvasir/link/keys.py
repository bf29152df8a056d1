"""The link's CURVE keys: two key pairs, and which half of them each side holds.

A directory of keys is what the Secret `<name>-link` looks like when it is mounted, one item per file, 40 Z85
characters each:

    frontends   server.secret   client.public
    engines     client.secret   server.public

A side's own public key is computed from its secret one. The operator makes the keys (kvasir_operator.link_keys).
"""

from dataclasses import dataclass, field
from pathlib import Path

import zmq

from kvasir.config.options import ConfigError
from kvasir_contract.environment import ENGINE_KEY_FILES, FRONTEND_KEY_FILES


@dataclass(frozen=True)
class LinkKeys:
    """One side's keys, in Z85."""

    public: bytes
    secret: bytes = field(repr=False)
    peer_public: bytes
    """What the other side must prove to be."""


def load_frontend_keys(directory: str) -> LinkKeys:
    """Raises ConfigError for a missing or malformed file."""
    return _load(Path(directory), *FRONTEND_KEY_FILES)


def load_engine_keys(directory: str) -> LinkKeys:
    """Raises ConfigError for a missing or malformed file."""
    return _load(Path(directory), *ENGINE_KEY_FILES)


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
        zmq.curve_public(key)  # decodes it: any 32 bytes are a key
    except (zmq.ZMQError, ValueError) as error:
        raise ConfigError(f"--link-keys: {file} does not hold a key of 40 Z85 characters") from error
    return key
