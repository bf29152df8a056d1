"""The HTTP requests that generate right now, so that a client that leaves or a server that stops can end them."""

import asyncio
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from kvasir.frontend.errors import shutting_down


class LiveRequests:
    """Used by the routes (`watch`) and by the server when it stops (`interrupt`)."""

    def __init__(self) -> None:
        self._watches: set[Watch] = set()

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, receive: Receive) -> "Watch":
        """A context in which the current task is cancelled when the client disconnects or the server stops; it
        then raises ClientDisconnect or ApiError (503) instead of CancelledError."""
        return Watch(self._watches, receive)

    def interrupt(self) -> None:
        """End every one of them, because the server stops."""
        for watch in list(self._watches):
            watch.interrupt(shutting_down())


class Watch:
    """See LiveRequests.watch. The request's body must have been read."""

    def __init__(self, watches: set["Watch"], receive: Receive) -> None:
        self._watches = watches
        self._receive = receive
        self._reason: Exception | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.create_task(self._wait_for_disconnect())
        self._watches.add(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watches.discard(self)
        self._watcher.cancel()
        if self._reason is not None and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._reason from None

    def interrupt(self, reason: Exception) -> None:
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientDisconnect())
