"""Frames to all workers, their replies and progress. See docs/design/shared-memory.md.

Start a worker by `subprocess`, with `handle.to_text()` as an argument and `pass_fds=handle.descriptors`; then call
`close_handles`. A forked child would keep other workers' ends open and hide their deaths. A thread that both writes
and reads may leave at most MAX_UNANSWERED_FRAMES unanswered: more could block for ever.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from kvasir.executor.shared_memory.replies import ReplyReader
from kvasir.executor.shared_memory.ring import RingReader, RingWriter, guaranteed_room
from kvasir.executor.shared_memory.segment import GRANULE, allocate, map_read_only, map_writable, round_up
from kvasir.executor.shared_memory.worker_progress import PROGRESS_BYTES, ProgressReader, ProgressWriter

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
