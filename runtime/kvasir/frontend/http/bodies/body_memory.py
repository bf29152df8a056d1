"""Bounds on all request bodies in memory: the arriving and the parsed ones."""

from typing import Final

from kvasir.client.request_errors import TooManyRequests

# any upload or request that ends makes room
RETRY_AFTER: Final = 1.0
UNCOUNTED: Final = 16 * 1024
"""Parsed bodies up to this size do not count."""


class Uploads:
    """Bytes of incomplete bodies, at most `limit`. A body in one piece is never refused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Raises TooManyRequests, and counts nothing, without room."""
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
    """Bytes of running requests' bodies, at most `limit`. A single one is never refused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Raises TooManyRequests, and counts nothing, without room."""
        if self.held and self.held + size > self._limit:
            raise TooManyRequests(
                f"the bodies of running requests take {self.held} bytes and this one {size}, and this frontend "
                f"holds at most {self._limit} (--max-parsed-bytes): try again when some have finished",
                RETRY_AFTER,
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size
