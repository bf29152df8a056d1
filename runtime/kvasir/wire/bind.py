"""Binds ZMQ sockets, without taking the address of a running process."""

import errno
import os
import socket as sockets
import stat

import zmq

from kvasir.config.options import ConfigError
from kvasir.process.listening import has_ipv6
from kvasir.wire.address import LinkAddress, private_directory
from kvasir_contract.endpoints import ANY_HOST


def bind(socket: zmq.Socket[bytes], address: LinkAddress) -> str:
    """Bind, and return the address for peers, with the real port instead of 0. Raises ConfigError."""
    if address.is_ipc:
        private_directory(address)
        _clear_stale(address)
        endpoint = address.endpoint()
    else:
        socket.ipv6 = ":" in address.host or (address.host == ANY_HOST and has_ipv6())
        # ZMQ writes "any free port" as a star.
        endpoint = address.endpoint() if address.port else address.endpoint().removesuffix("0") + "*"
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        reason = "another process has it" if error.errno == errno.EADDRINUSE else str(error)
        raise ConfigError(f"{address.flag} cannot be bound: {reason}") from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


def _clear_stale(address: LinkAddress) -> None:
    # Look first: ZMQ's bind unlinks any file at the path.
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{address.flag} cannot be bound: {address.path} is there and is not a socket")
    with sockets.socket(sockets.AF_UNIX) as probe:
        probe.setblocking(False)  # a live listener with a full backlog answers EAGAIN
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass
    raise ConfigError(f"{address.flag} cannot be bound: a running process listens there")
