"""Reports that the client of a request has disconnected, without a task per request that waits for it.

Connection makes one Disconnection for each request and puts it into the request's ASGI scope.
"""

from collections.abc import Callable, Mapping
from typing import Any

_KEY = "disconnection"


class Disconnection:
    """Calls one function when the client of the request disconnects."""

    __slots__ = ("_callback", "_resume_reading", "happened")

    def __init__(self, scope: Mapping[str, Any], resume_reading: Callable[[], object]) -> None:
        """`resume_reading`: have the connection read again. A paused connection shows no end."""
        self.happened = False
        self._callback: Callable[[], object] | None = None
        self._resume_reading = resume_reading
        scope["state"][_KEY] = self

    def call(self, callback: Callable[[], object]) -> None:
        """From now on, `callback` is called when the client disconnects; now if it has disconnected."""
        self._callback = callback
        if self.happened:
            callback()
        else:
            self._resume_reading()

    def cancel(self) -> None:
        """Call the function no more."""
        self._callback = None

    def report(self) -> None:
        """The client has disconnected."""
        self.happened = True
        if self._callback is not None:
            self._callback()


def disconnection_of(scope: Mapping[str, Any]) -> Disconnection:
    disconnection = scope["state"][_KEY]
    assert isinstance(disconnection, Disconnection)
    return disconnection
