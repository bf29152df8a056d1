"""Binds the frontend's end of the link, without taking the address of a running process."""

import errno
import os
import socket as sockets
import stat

import zmq

from kvasir.config.options import ConfigError
from kvasir.process.listening import has_ipv6
from kvasir.wire.address import LinkAddress, parse_address, private_directory, require_keys
from kvasir_contract.endpoints import ANY_HOST


def frontend_address(link: tuple[str, ...], has_keys: bool) -> LinkAddress:
    """Return the address that the frontend binds. Raises ConfigError unless there is exactly one usable address."""
    if len(link) != 1:
        raise ConfigError(f"--link: a frontend binds one address, {len(link)} are given")
    address = parse_address(link[0])
    if not address.is_ipc and address.host != ANY_HOST and address.ip is None:
        raise ConfigError(
            f"--link {address.text}: a frontend binds an IP address of its own, or {ANY_HOST} for all of them"
        )
    require_keys(address, has_keys)
    return address


def bind(socket: zmq.Socket[bytes], address: LinkAddress) -> str:
    """Bind, and return the address for engines, with the real port instead of 0. Raises ConfigError."""
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
        raise ConfigError(f"--link {address.text} cannot be bound: {reason}") from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


def _clear_stale(address: LinkAddress) -> None:
    """Remove the socket of a dead process. Look first, because ZMQ's bind unlinks any file at the path."""
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--link {address.text} cannot be bound: {address.path} is there and is not a socket")
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
    raise ConfigError(f"--link {address.text} cannot be bound: a process that runs listens there")
