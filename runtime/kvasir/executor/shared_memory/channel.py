"""Frames to all workers, their replies and progress. See docs/design/shared-memory.md.

Start a worker by `subprocess`, with `handle.to_text()` as an argument and `pass_fds=handle.descriptors`; then call
`close_handles`. A forked child would keep other workers' ends open and hide their deaths. A thread that both writes
and reads may leave at most MAX_UNANSWERED_FRAMES unanswered: more could block for ever.
"""

import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from kvasir.executor.shared_memory.ring import RingError, RingReader, RingWriter, guaranteed_room, peer_name
from kvasir.executor.shared_memory.segment import GRANULE, allocate, map_read_only, map_writable, round_up
from kvasir.executor.shared_memory.worker_progress import PROGRESS_BYTES, ProgressReader, ProgressWriter


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


REQUEST_BUFFERS: Final = 32
REPLY_BUFFERS: Final = 16
# each may have a late input, without a reply
MAX_UNANSWERED_FRAMES: Final = min(guaranteed_room(REQUEST_BUFFERS) // 2, guaranteed_room(REPLY_BUFFERS))


class ChannelLayout(msgspec.Struct, frozen=True):
    request_bytes: int = 128 * 1024  # larger frames cost a segment
    reply_bytes: int = 32 * 1024

    @property
    def requests_size(self) -> int:
        return round_up(REQUEST_BUFFERS * self.request_bytes)

    @property
    def worker_size(self) -> int:
        return round_up(REPLY_BUFFERS * self.reply_bytes) + GRANULE

    def size(self, num_workers: int) -> int:
        return self.requests_size + num_workers * self.worker_size

    def requests(self, segment: memoryview) -> memoryview:
        return segment[: REQUEST_BUFFERS * self.request_bytes]

    def worker_offset(self, rank: int) -> int:
        return self.requests_size + rank * self.worker_size

    def replies(self, worker: memoryview) -> memoryview:
        return worker[: REPLY_BUFFERS * self.reply_bytes]

    def progress(self, worker: memoryview) -> memoryview:
        start = self.worker_size - GRANULE
        return worker[start : start + PROGRESS_BYTES]


class WorkerHandle(msgspec.Struct, frozen=True):
    """The worker must inherit the descriptors under the same numbers."""

    rank: int
    segment: int
    requests: int
    replies: int
    layout: ChannelLayout

    @property
    def descriptors(self) -> tuple[int, int, int]:
        return (self.segment, self.requests, self.replies)

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "WorkerHandle":
        return msgspec.json.decode(text, type=cls)


class EngineChannel:
    def __init__(self, num_workers: int, layout: ChannelLayout | None = None) -> None:
        """Raises SharedMemoryError if the container has too little memory."""
        layout = layout or ChannelLayout()
        self._segment = allocate("kvasir-executor", layout.size(num_workers))
        memory = map_writable(self._segment, 0, layout.size(num_workers))
        to_workers = [socket.socketpair() for _ in range(num_workers)]
        from_workers = [socket.socketpair() for _ in range(num_workers)]
        areas = [memory[layout.worker_offset(rank) :][: layout.worker_size] for rank in range(num_workers)]
        self.requests = RingWriter(
            layout.requests(memory), REQUEST_BUFFERS, [(rank, mine) for rank, (mine, _) in enumerate(to_workers)]
        )
        self.replies = ReplyReader(
            [
                RingReader(layout.replies(area), REPLY_BUFFERS, rank, mine)
                for rank, (area, (mine, _)) in enumerate(zip(areas, from_workers, strict=True))
            ]
        )
        self.progress = [ProgressReader(layout.progress(area)) for area in areas]
        self._workers_ends = [theirs for _, theirs in (*to_workers, *from_workers)]
        self._handles = [
            WorkerHandle(rank, self._segment, to_workers[rank][1].fileno(), from_workers[rank][1].fileno(), layout)
            for rank in range(num_workers)
        ]

    def handle(self, rank: int) -> WorkerHandle:
        """Return the handle of worker `rank`; its descriptors are open until `close_handles`."""
        return self._handles[rank]

    def close_handles(self) -> None:
        """Close the workers' ends here. Then the death of a worker ends a wait for it."""
        for end in self._workers_ends:
            end.close()
        if self._segment >= 0:
            os.close(self._segment)
            self._segment = -1

    def interrupt(self) -> None:
        """End every blocked wait, and let the workers see the end. Any thread."""
        self.requests.interrupt()
        self.replies.interrupt()

    def close(self) -> None:
        # no other thread may use the channel
        self.close_handles()
        self.requests.close()
        self.replies.close()


class WorkerChannel:
    def __init__(self, handle: WorkerHandle) -> None:
        layout = handle.layout
        for descriptor in handle.descriptors:
            os.set_inheritable(descriptor, False)  # a child must not hide this worker's death
        with _closing(handle.segment):
            frames = map_read_only(handle.segment, 0, layout.requests_size)
            area = map_writable(handle.segment, layout.worker_offset(handle.rank), layout.worker_size)
        self.rank = handle.rank
        self.requests = RingReader(
            layout.requests(frames), REQUEST_BUFFERS, None, socket.socket(fileno=handle.requests)
        )
        self.replies = RingWriter(
            layout.replies(area), REPLY_BUFFERS, [(None, socket.socket(fileno=handle.replies))]
        )
        self.progress = ProgressWriter(layout.progress(area))

    def interrupt(self) -> None:
        self.requests.interrupt()
        self.replies.interrupt()

    def close(self) -> None:
        self.requests.close()
        self.replies.close()


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
