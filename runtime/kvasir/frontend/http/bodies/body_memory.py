"""Bounds on all request bodies that are held at one time.

Two sums are bounded: of the arriving bodies (a client may send slowly), and of the parsed ones (an answer may take
long). A body in one piece is never refused for the first, a body that is alone never for the second.
"""

from typing import Final

from kvasir.client.request_errors import TooManyRequests

RETRY_AFTER: Final = 1.0
"""Seconds. Any upload or request that ends makes room."""
UNCOUNTED: Final = 16 * 1024
"""Bytes of a parsed body that does not count."""


class Uploads:
    """Bytes of the bodies that are incomplete, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Raises TooManyRequests, and holds nothing more, if there is no room."""
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
    """Bytes in memory of the bodies of running requests, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Raises TooManyRequests, and holds nothing more, if there is no room."""
        if self.held and self.held + size > self._limit:
            raise TooManyRequests(
                f"the bodies of running requests take {self.held} bytes and this one {size}, and this frontend "
                f"holds at most {self._limit} (--max-parsed-bytes): try again when some have finished",
                RETRY_AFTER,
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size
