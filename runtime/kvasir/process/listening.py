"""Listening TCP and Unix sockets, with advice for those that cannot be bound."""

import contextlib
import errno
import os
import socket
import stat
from typing import Any, Final

from kvasir.config.options import ConfigError
from kvasir_contract.endpoints import ANY_HOST

BACKLOG: Final = 2048  # of a server for clients

IN_USE: Final = "a process listens there, or it is not a socket: stop that process, or choose another path"


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Listen on a name, an IP address, or ANY_HOST. Raises OSError (socket.gaierror for a name without an address),
    and OverflowError for a port out of range.
    """
    if host == ANY_HOST:
        return _on_every_address(port, backlog)
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return _bound(socket.socket(family, kind, protocol), address, backlog)


def unix_socket(path: str, backlog: int) -> socket.socket:
    """Replace the socket file of an ended process. Raises OSError: EADDRINUSE if a process listens there or the
    path is another kind of file.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if is_stale(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def listen_on(host: str, port: int) -> socket.socket:
    """Listen for clients. Raises ConfigError with the option, --host or --port."""
    try:
        return listening_socket(host, port, BACKLOG)
    except socket.gaierror as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(_advice(host, port, error)) from error


def listen_at(path: str) -> socket.socket:
    """Listen for clients at a Unix socket. Raises ConfigError with the option, --uds."""
    try:
        return unix_socket(path, BACKLOG)
    except OSError as error:
        # A path that is too long has no errno.
        advice = IN_USE if error.errno == errno.EADDRINUSE else f"{error.strerror or error}: choose another path"
        raise ConfigError(f"--uds {path}: {advice}") from error


def remove_socket_file(listener: socket.socket) -> None:
    # Before closing: later the file may be a successor's.
    if listener.family == socket.AF_UNIX:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(listener.getsockname())


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return its URL, with the real port instead of 0; the path of a Unix socket."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return url(host, port, scheme)


def url(host: str, port: int, scheme: str = "http") -> str:
    host = host.removeprefix("[").removesuffix("]")
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def has_ipv6() -> bool:
    return socket.has_dualstack_ipv6()


def is_stale(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a live listener with a full backlog responds with EAGAIN
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:  # a full backlog, another type, or just removed
            return False
    return False


def _on_every_address(port: int, backlog: int) -> socket.socket:
    if not has_ipv6():
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), ("0.0.0.0", port), backlog)
    # The default is the machine's (net.ipv6.bindv6only).
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return _bound(listener, ("::", port), backlog)


def _bound(listener: socket.socket, address: tuple[Any, ...], backlog: int) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port} is in use on {host}: choose another one, or 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"--port {port} may not be used by this user: choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine: use 127.0.0.1, or {ANY_HOST} for all addresses"
    return f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}"
