"""Binds ZMQ sockets to TCP and Unix addresses."""

import errno
import os

import zmq

from kvasir.config.options import ConfigError
from kvasir.process.listening import IN_USE, has_ipv6, is_stale
from kvasir.wire.address import LinkAddress, private_directory
from kvasir_contract.endpoints import ANY_HOST


def bind(socket: zmq.Socket[bytes], address: LinkAddress) -> str:
    """Return the address for peers, with the real port instead of 0. Raises ConfigError."""
    if address.is_ipc:
        private_directory(address)
        if is_stale(address.path):
            os.unlink(address.path)
        elif os.path.lexists(address.path):  # ZMQ would unlink it
            raise ConfigError(f"{address.flag} cannot be bound: {IN_USE}")
        endpoint = address.endpoint()
    else:
        socket.ipv6 = ":" in address.host or (address.host == ANY_HOST and has_ipv6())
        # ZMQ writes "any free port" as a star.
        endpoint = address.endpoint() if address.port else address.endpoint().removesuffix("0") + "*"
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        reason = "another process has it; choose another one" if error.errno == errno.EADDRINUSE else str(error)
        raise ConfigError(f"{address.flag} cannot be bound: {reason}") from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
