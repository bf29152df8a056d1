"""Accepts many connections in one turn of the event loop. uvloop's own server accepts one."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError
from kvasir.process.listening import listen_at, listen_on
from kvasir.process.seldom_log import SeldomLog

log = SeldomLog(logging.getLogger(__name__))

# A burst doubles with each turn, so that several processes share a socket.
PER_TURN: Final = 64
PAUSE: Final = 1.0
"""Seconds without accepting, when file descriptors or memory are exhausted."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Serves a listening socket, with the methods that uvicorn calls on asyncio's server."""

    def __init__(
        self,
        listener: socket.socket,
        backlog: int,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._tls = tls
        self._starting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._batch = 1
        listener.setblocking(False)
        listener.listen(backlog)
        self._resume()

    @property
    def is_starting(self) -> bool:
        return bool(self._starting)

    def close(self) -> None:
        """Accept the kernel's queue, and then no more. May be called again."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            with contextlib.suppress(OSError):  # none left, or no file descriptors
                while True:
                    self._accept_one()
            self._listener.close()

    async def wait_closed(self) -> None:
        pass

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # With one connection per turn, a flood would hold others in the kernel's queue for seconds.
        for _ in range(self._batch):
            try:
                self._accept_one()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._batch = 1
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.warning(f"cannot accept connections for {PAUSE:g} s: {error.strerror}")
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(PAUSE, self._resume)
                return
        self._batch = min(2 * self._batch, PER_TURN)

    def _accept_one(self) -> None:
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)
        task = self._loop.create_task(self._start(accepted))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, accepted, ssl=self._tls)
        except (OSError, ssl.SSLError):  # the client left, or does not speak TLS
            accepted.close()


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
