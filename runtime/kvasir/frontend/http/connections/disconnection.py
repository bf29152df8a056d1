"""Cancels requests when their client disconnects or the server stops, and then closes idle connections."""

import array
import asyncio
import fcntl
import termios
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, Protocol

from starlette.requests import ClientDisconnect
from starlette.types import Scope

from kvasir.frontend.errors import shutting_down

_KEY = "disconnection"


class Disconnection:
    """Calls one function when the client disconnects. Each request's ASGI scope has one."""

    __slots__ = ("_callback", "_resume_reading", "happened")

    def __init__(self, scope: Mapping[str, Any], resume_reading: Callable[[], object]) -> None:
        self.happened = False
        self._callback: Callable[[], object] | None = None
        # A paused connection does not notice its end.
        self._resume_reading = resume_reading
        scope["state"][_KEY] = self

    def call(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the client disconnects; at once if it has."""
        self._callback = callback
        if self.happened:
            callback()
        else:
            self._resume_reading()

    def cancel(self) -> None:
        self._callback = None

    def report(self) -> None:
        self.happened = True
        if self._callback is not None:
            self._callback()


def disconnection_of(scope: Mapping[str, Any]) -> Disconnection:
    disconnection = scope["state"][_KEY]
    assert isinstance(disconnection, Disconnection)
    return disconnection


class LiveRequests:
    def __init__(self) -> None:
        self._watches: set[Watch] = set()

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, scope: Scope) -> "Watch":
        """Return a context that is cancelled when the client disconnects (and raises ClientDisconnect) or when the
        server stops (ApiError, 503). The request's body has been read."""
        return Watch(self._watches, scope)

    def interrupt(self) -> None:
        for watch in list(self._watches):
            watch.interrupt(shutting_down())


class Watch:
    def __init__(self, watches: set["Watch"], scope: Scope) -> None:
        self._watches = watches
        self._disconnection = disconnection_of(scope)
        self._reason: Exception | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watches.add(self)
        self._disconnection.call(self._client_left)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watches.discard(self)
        self._disconnection.cancel()
        if self._reason is not None and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._reason from None

    def interrupt(self, reason: Exception) -> None:
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    def _client_left(self) -> None:
        self.interrupt(ClientDisconnect())


# A client that sends while its connection is closed does not know if the request was computed. So close the longest
# idle one first, after a second without requests, and only if no bytes wait.
IDLE_SECONDS: Final = 1.0
# otherwise all clients would connect again at once
PAUSE_SECONDS: Final = 0.005
MAX_PAUSES_SECONDS: Final = 2.0


class MaybeIdle(Protocol):
    transport: asyncio.Transport

    @property
    def idle_since(self) -> float | None:
        pass


async def close_idle(connections: Collection[MaybeIdle]) -> None:
    # answers with `Connection: close` end the others
    idle = [
        (since, number, each) for number, each in enumerate(connections) if (since := each.idle_since) is not None
    ]
    if not idle:
        return
    pause = min(PAUSE_SECONDS, MAX_PAUSES_SECONDS / len(idle))
    loop = asyncio.get_running_loop()
    for since, _, connection in sorted(idle):
        await asyncio.sleep(max(0.0, since + IDLE_SECONDS - loop.time()))
        if connection.idle_since is not None and not _has_unread(connection.transport):
            connection.transport.close()
        await asyncio.sleep(pause)


def _has_unread(transport: asyncio.Transport) -> bool:
    """Return whether the kernel has unread bytes."""
    if transport.is_closing():
        return False
    count = array.array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, count)
    return count[0] > 0
