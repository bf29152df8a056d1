"""The server's listening socket: bound before anything slow happens, so that a wrong port is told at once."""

import errno
import os
import socket

from kvasir.config.options import ConfigError
from kvasir.config.settings import ServerConfig

BACKLOG = 2048


def listen(config: ServerConfig) -> socket.socket:
    """The inherited socket (--fd), or a new one on --host and --port. Clients that connect wait until it is served.

    Raises ConfigError with the option to change.
    """
    if config.fd is not None:
        return _inherited(config.fd)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"--host {config.host}: {error.strerror}") from error
    result = socket.socket(family, kind, protocol)
    try:
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        result.bind(address)
        result.listen(BACKLOG)
    except OSError as error:
        result.close()
        raise ConfigError(_advice(config, error)) from error
    return result


def url_of(listener: socket.socket) -> str:
    """Where clients reach it, with the port that was picked for --port 0."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def _inherited(fd: int) -> socket.socket:
    try:
        result = socket.socket(fileno=fd)
        listening = result.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"--fd {fd} is not an open socket: {error.strerror}") from error
    if not listening or result.family not in (socket.AF_INET, socket.AF_INET6):
        result.detach()  # whoever gave it still has it
        raise ConfigError(f"--fd {fd} is not a listening TCP socket")
    return result


def _advice(config: ServerConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {config.port} is in use on {config.host}: choose another one, or 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"--port {config.port} may not be used by this user: choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {config.host} is no address of this machine: use 127.0.0.1, or 0.0.0.0 for all addresses"
    return f"cannot listen on {config.host}:{config.port}: {os.strerror(error.errno or 0)}"
