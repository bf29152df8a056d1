"""CURVE keys. A directory, like the Secret `<name>-link`, has one key of 40 Z85 characters per file:

frontends   server.secret   client.public
engines     client.secret   server.public
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import zmq

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
