"""Cancels requests that generate when their client disconnects, without a task per request, or the server stops."""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

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
