"""Reports that the client of a request has disconnected, without a task per request."""

from collections.abc import Callable, Mapping
from typing import Any

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
