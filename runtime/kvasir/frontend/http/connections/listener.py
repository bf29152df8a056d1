"""The server's listening socket, bound before anything is loaded, so that a wrong port is reported at once."""

import socket

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError
from kvasir.process.listening import listen_at, listen_on


def listen(config: ServerConfig) -> socket.socket:
    """Return a new socket, or the inherited one (--fd). Raises ConfigError with the option."""
    if config.fd is not None:
        return _inherited(config.fd)
    if config.uds is not None:
        return listen_at(config.uds)
    return listen_on(config.host, config.port)


def _inherited(fd: int) -> socket.socket:
    try:
        result = socket.socket(fileno=fd)
        listening = result.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"--fd {fd} is not an open socket: {error.strerror}") from error
    if not listening or result.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        result.detach()  # the parent process still owns it
        raise ConfigError(f"--fd {fd} is not a listening TCP or Unix socket")
    return result
