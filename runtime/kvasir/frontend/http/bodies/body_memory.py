"""Bounds on the request bodies that are held at one time; body.py counts each.

The limit of one body bounds what one client can make this process hold. Clients are many, so the sum is bounded
too: of the bodies that are arriving (a client may send slowly), and of those that are parsed (an answer may be
long). A body that comes in one piece is never refused for the first, and a body that is alone not for the second.
"""

from typing import Final

from kvasir.client.request_errors import TooManyRequests

RETRY_AFTER: Final = 1.0
"""Retry-After in seconds: room is made as soon as any upload or request ends."""
UNCOUNTED: Final = 16 * 1024
"""Bytes of a parsed body that does not count."""


class Uploads:
    """Bytes of bodies of which more is to come, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Raises TooManyRequests, and holds nothing more, when there is no room."""
        if self.held + size > self._limit:
            raise TooManyRequests(
                f"{self.held} bytes of other requests' bodies are still arriving, and this frontend receives at "
                f"most {self._limit} bytes at one time (--max-upload-bytes): try again when some have come",
                RETRY_AFTER,
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


class ParsedBodies:
    """Bytes of memory of the bodies of requests that have no complete answer, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Raises TooManyRequests, and holds nothing more, when there is no room."""
        if self.held and self.held + size > self._limit:
            raise TooManyRequests(
                f"the bodies of running requests take {self.held} bytes and this one {size}, and this frontend "
                f"holds at most {self._limit} (--max-parsed-bytes): try again when some have finished",
                RETRY_AFTER,
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size
