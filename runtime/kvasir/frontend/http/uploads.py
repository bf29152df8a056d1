"""A bound on the request bodies that are being received at one time; body.py counts each as it arrives.

The limit of one body bounds what one client can make this process hold. Clients that send slowly are many, so the
sum is bounded too. A body that comes in one piece holds nothing while it waits for more, and is never refused here.
"""

from typing import Final

from kvasir.client.request_errors import TooManyRequests

RETRY_AFTER: Final = 1.0
"""Retry-After in seconds: room is made as soon as any upload ends."""


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
