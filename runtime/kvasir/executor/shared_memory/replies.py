"""The replies of all workers: reply n of each belongs to the n-th frame with a reply."""

import select
import time
from collections import deque
from collections.abc import Sequence

from kvasir.executor.shared_memory.ring import RingError, RingReader, peer_name


class NoReplyError(RingError):
    def __init__(self, ranks: Sequence[int], seconds: float) -> None:
        names = ", ".join(map(peer_name, ranks))
        super().__init__(f"no reply within {seconds:g} s from {names}", ranks[0])
        self.ranks = tuple(ranks)


class ReplyReader:
    def __init__(self, rings: Sequence[RingReader]) -> None:
        # by rank
        self._rings = rings
        self._by_descriptor = {ring.fileno(): rank for rank, ring in enumerate(rings)}
        # a worker may be steps ahead
        self._arrived: list[deque[bytes]] = [deque() for _ in rings]
        self._poll = select.poll()
        for ring in rings:
            self._poll.register(ring, select.POLLIN)

    def read(self, timeout_seconds: float | None = None) -> list[bytes]:
        """Wait for each worker's next reply; return them by rank. None: no timeout.

        Raises NoReplyError, after which `read` may be called again; at once PeerLostError or RingInterruptedError.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not all(self._arrived):
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            events = self._poll.poll(remaining)
            if not events and timeout_seconds is not None:
                missing = [rank for rank, replies in enumerate(self._arrived) if not replies]
                raise NoReplyError(missing, timeout_seconds)
            for descriptor, _ in events:
                rank = self._by_descriptor[descriptor]
                self._arrived[rank].append(self._rings[rank].read())
        return [replies.popleft() for replies in self._arrived]

    def interrupt(self) -> None:
        for ring in self._rings:
            ring.interrupt()

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
