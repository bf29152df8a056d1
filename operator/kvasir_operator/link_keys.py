"""Makes the link's keys, once per InferenceService; what they are for is in resources/security.py."""

import zmq

from kvasir_operator.resources.security import CLIENT_PUBLIC, CLIENT_SECRET, SERVER_PUBLIC, SERVER_SECRET


def new_link_keys() -> dict[str, str]:
    """Two fresh CURVE key pairs by file name, in Z85. Not to be logged."""
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    keys = {
        SERVER_SECRET: server_secret,
        SERVER_PUBLIC: server_public,
        CLIENT_SECRET: client_secret,
        CLIENT_PUBLIC: client_public,
    }
    return {name: key.decode() for name, key in keys.items()}
