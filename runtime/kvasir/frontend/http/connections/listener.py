"""The server's listening socket, bound before anything is loaded, so that a wrong port is reported at once."""

import errno
import os
import socket

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError
from kvasir.process.listening import advice_for, listening_socket, unix_socket
from kvasir_contract.endpoints import ANY_HOST

BACKLOG = 2048


def listen(config: ServerConfig) -> socket.socket:
    """Return a new socket, or the inherited one (--fd). Raises ConfigError with the option."""
    if config.fd is not None:
        return _inherited(config.fd)
    if config.uds is not None:
        return _at(config.uds)
    try:
        return listening_socket(config.host, config.port, BACKLOG)
    except socket.gaierror as error:
        raise ConfigError(f"--host {config.host}: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(_advice(config, error)) from error


def _at(path: str) -> socket.socket:
    try:
        return unix_socket(path, BACKLOG)
    except OSError as error:
        raise ConfigError(f"--uds {path}: {advice_for(error)}") from error


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


def _advice(config: ServerConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {config.port} is in use on {config.host}: choose another one, or 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"--port {config.port} may not be used by this user: choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        advice = f"use 127.0.0.1, or {ANY_HOST} for all addresses"
        return f"--host {config.host} is not an address of this machine: {advice}"
    return f"cannot listen on {config.host}:{config.port}: {os.strerror(error.errno or 0)}"
