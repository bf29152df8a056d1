"""Generates the keys of a link and the random name of their Secret."""

import secrets
from typing import Final

import zmq

from kvasir_contract.environment import CLIENT_PUBLIC, CLIENT_SECRET, SERVER_PUBLIC, SERVER_SECRET
from kvasir_operator.spec import InferenceService

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' for random names, which cannot spell words
_SUFFIX_LENGTH: Final = 10


def new_link_keys() -> dict[str, str]:
    """Return two new CURVE key pairs in Z85, by file name. Never log them."""
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    keys = {
        SERVER_SECRET: server_secret,
        SERVER_PUBLIC: server_public,
        CLIENT_SECRET: client_secret,
        CLIENT_PUBLIC: client_public,
    }
    return {name: key.decode() for name, key in keys.items()}


def new_link_secret_name(service: InferenceService) -> str:
    return f"{service.name}-link-" + "".join(secrets.choice(_ALPHABET) for _ in range(_SUFFIX_LENGTH))
