"""CacheReports: reports cached block hashes to frontends, for routing.

A frontend that asks (Welcome.cache_events) gets a snapshot in parts, by block id, and all changes from then on.
Changes are sent before each part, so a hash may come twice but never too late.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir.engine.kv.prefix_cache import CacheLog, PrefixCache
from kvasir.link.protocol import CacheEvents

REPORT_SECONDS: Final = 0.05  # between reports of a busy engine; an idle one reports at once
REPORT_HASHES: Final = 8192  # changes for an early report, and blocks in a part: under a millisecond
MAX_PARTS: Final = 512  # an idle engine sends them in a row, and a frontend queues 2048 messages


@dataclass(slots=True)
class _Follower:
    next_block: int = 1  # from here on the snapshot is missing
    sequence: int = 0


class CacheReports:
    def __init__(
        self,
        cache: PrefixCache | None,
        num_blocks: int,
        send: Callable[[str, CacheEvents], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._end = num_blocks + 1
        self._part = max(REPORT_HASHES, -(-num_blocks // MAX_PARTS))
        self._send = send
        self._clock = clock
        self._followers: dict[str, _Follower] = {}
        self._log = CacheLog()
        self._due = 0.0

    @property
    def has_snapshot(self) -> bool:
        return any(follower.next_block < self._end for follower in self._followers.values())

    def follow(self, frontend: str) -> None:
        if self._cache is None:
            return
        self._send_changes()
        self._followers[frontend] = _Follower()
        self._cache.log = self._log

    def forget(self, frontend: str) -> None:
        if self._followers.pop(frontend, None) is not None and not self._followers and self._cache is not None:
            self._log.take()
            self._cache.log = None

    def after_step(self) -> None:
        if not self._followers:
            return
        if self.has_snapshot:
            self.send_part()
        elif not self._log.is_empty and (len(self._log) >= REPORT_HASHES or self._clock() >= self._due):
            self._send_changes()

    def send_part(self) -> None:
        self._send_changes()
        cache = self._cache
        for frontend, follower in self._followers.items():
            if cache is not None and follower.next_block < self._end:
                end = min(follower.next_block + self._part, self._end)
                hashes = cache.hashes(range(follower.next_block, end))
                follower.next_block = end
                self._send_events(frontend, follower, stored=b"".join(hashes))

    def before_waiting(self) -> None:
        if not self._log.is_empty:
            self._send_changes()

    def _send_changes(self) -> None:
        if self._log.is_empty:
            return
        self._due = self._clock() + REPORT_SECONDS
        was_cleared, stored, evicted = self._log.take()
        packed = b"".join(stored), b"".join(evicted)
        for frontend, follower in self._followers.items():
            self._send_events(frontend, follower, *packed, was_cleared)

    def _send_events(
        self, frontend: str, follower: _Follower, stored: bytes, evicted: bytes = b"", reset: bool = False
    ) -> None:
        self._send(frontend, CacheEvents(follower.sequence, stored, evicted, reset))
        follower.sequence += 1
