"""A ring of frames in shared memory: one writer, readers in other processes. See docs/design/shared-memory.md.

    writer                              memory                         reader
      copy frame n  ────────────────►  buffer n % count
      send (n, length) ──────────────── socket ──────────────────────►  recvmsg: (n, length)
                                       buffer n % count ─────────────►  copy frame n
      frame n + count may be written ◄── socket ─────────────────────  send n + 1 ("frames read")

The end of a process closes its sockets, so a wait for it raises PeerLostError, if no other process holds its end.
"""

import array
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from kvasir.executor.shared_memory.segment import allocate

MAX_FRAME_BYTES: Final = 2**30
MAX_BUFFERS: Final = 64  # their headers fit into a socket's default buffer
_HEADER: Final = struct.Struct("=QQ")  # sequence number, bytes of the frame
_FRAMES_READ: Final = struct.Struct("=Q")
_DESCRIPTOR_SPACE: Final = socket.CMSG_SPACE(struct.calcsize("i"))
_MAX_ACKNOWLEDGEMENTS_BYTES: Final = 64 * _FRAMES_READ.size


class RingError(Exception):
    """`rank` is the other end's worker, None for the engine."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class PeerLostError(RingError):
    def __init__(self, rank: int | None) -> None:
        super().__init__(f"{peer_name(rank)} has ended", rank)


class SlowReaderError(RingError):
    pass


class RingInterruptedError(RingError):
    pass


class FrameTooLargeError(ValueError):
    pass


def peer_name(rank: int | None) -> str:
    return "the engine" if rank is None else f"worker {rank}"


def interval_of_acknowledgements(count: int) -> int:
    """Return the frames per acknowledgement, above 1 to save system calls."""
    return max(1, count // 4)


def guaranteed_room(count: int) -> int:
    """Return how many unread frames always have room in `count` buffers."""
    return count - interval_of_acknowledgements(count) + 1


class RingWriter:
    def __init__(self, memory: memoryview, count: int, readers: Sequence[tuple[int | None, socket.socket]]) -> None:
        """`memory` has `count` equal buffers. `readers`: ranks (None: the engine) and sockets."""
        if not 1 <= count <= MAX_BUFFERS:
            raise ValueError(f"a ring of {count} buffers: use 1 to {MAX_BUFFERS}")
        self._memory = memory
        self._count = count
        self._buffer_bytes = len(memory) // count
        self._readers = [_ReaderLink(rank, sock) for rank, sock in readers]
        self._by_descriptor = {reader.socket.fileno(): reader for reader in self._readers}
        self._poll = select.poll()
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLIN)
        self._next = 0
        self._limit = count  # the first frame whose buffer a reader may still need
        self._interrupted = False

    def write(self, frame: bytes, timeout_seconds: float | None = None) -> None:
        """Send a frame to all readers; wait for room. None: no timeout.

        After SlowReaderError, FrameTooLargeError and SharedMemoryError nothing was sent, and `write` may be called
        again; after other RingErrors it cannot be used.
        """
        size = len(frame)
        if size > MAX_FRAME_BYTES:
            raise FrameTooLargeError(f"a frame of {size} bytes: the maximum is {MAX_FRAME_BYTES}")
        sequence = self._next
        if sequence >= self._limit:
            self._wait_for_room(timeout_seconds)
        header = _HEADER.pack(sequence, size)
        if size <= self._buffer_bytes:
            start = sequence % self._count * self._buffer_bytes
            self._memory[start : start + size] = frame
            self._send([header], [])
        else:
            self._send_apart(header, frame)
        self._next = sequence + 1

    def interrupt(self) -> None:
        self._interrupted = True
        for reader in self._readers:
            with suppress(OSError):
                reader.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # no thread may be in `write`
        for reader in self._readers:
            reader.socket.close()

    def _send_apart(self, header: bytes, frame: bytes) -> None:
        descriptor = allocate("kvasir-frame", len(frame))
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(frame)
            self._send([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
        finally:
            os.close(descriptor)

    def _send(self, header: list[bytes], descriptors: list[tuple[int, int, "array.array[int]"]]) -> None:
        for reader in self._readers:
            try:
                if descriptors:
                    reader.socket.sendmsg(header, descriptors, socket.MSG_DONTWAIT)
                else:
                    reader.socket.send(header[0], socket.MSG_DONTWAIT)
            except OSError as error:
                raise self._unsent(reader, error) from error

    def _wait_for_room(self, timeout_seconds: float | None) -> None:
        needed = self._next - self._count + 1
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while (slowest := min(self._readers, key=lambda reader: reader.frames_read)).frames_read < needed:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            events = self._poll.poll(remaining)
            if not events:
                raise SlowReaderError(
                    f"{peer_name(slowest.rank)} has not acknowledged frame {slowest.frames_read} within "
                    f"{timeout_seconds:g} s, so frame {self._next} cannot be written",
                    slowest.rank,
                )
            for descriptor, _ in events:
                reader = self._by_descriptor[descriptor]
                if not reader.take_acknowledgements():
                    raise self._lost(reader)
        self._limit = slowest.frames_read + self._count

    def _unsent(self, reader: "_ReaderLink", error: OSError) -> RingError:
        if self._interrupted or isinstance(error, ConnectionError):
            return self._lost(reader)
        name = peer_name(reader.rank)
        if isinstance(error, BlockingIOError):
            return RingError(f"the socket to {name} is too small: raise sysctl net.core.wmem_default", reader.rank)
        return RingError(f"sending to {name} failed: {error}", reader.rank)

    def _lost(self, reader: "_ReaderLink") -> RingError:
        if self._interrupted:
            return RingInterruptedError("the ring was shut down while a frame was written")
        return PeerLostError(reader.rank)


class _ReaderLink:
    def __init__(self, rank: int | None, sock: socket.socket) -> None:
        self.rank = rank
        self.socket = sock
        self.frames_read = 0

    def take_acknowledgements(self) -> bool:
        """Return False if the reader has ended."""
        try:
            data = self.socket.recv(_MAX_ACKNOWLEDGEMENTS_BYTES)
        except OSError:
            return False
        if data:
            (self.frames_read,) = _FRAMES_READ.unpack_from(data, len(data) - _FRAMES_READ.size)
        return bool(data)


class RingReader:
    def __init__(self, memory: memoryview, count: int, rank: int | None, sock: socket.socket) -> None:
        """`rank`: the writer's (None: the engine). `memory` has `count` equal buffers."""
        self.rank = rank
        self._memory = memory
        self._count = count
        self._buffer_bytes = len(memory) // count
        self._interval = interval_of_acknowledgements(count)
        self._socket = sock
        self._next = 0
        self._interrupted = False

    def fileno(self) -> int:
        """Return a descriptor that is readable if `read` does not block."""
        return self._socket.fileno()

    def read(self) -> bytes:
        """Wait for the next frame. Raises PeerLostError after the writer's last frame, RingInterruptedError,
        RingError.
        """
        try:
            header, ancillary, _, _ = self._socket.recvmsg(_HEADER.size, _DESCRIPTOR_SPACE, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise self._lost() from error
        if len(header) < _HEADER.size:
            raise self._lost()
        sequence, size = _HEADER.unpack(header)
        if sequence != self._next:
            raise RingError(f"{peer_name(self.rank)} sent frame {sequence} instead of {self._next}", self.rank)
        if size <= self._buffer_bytes:
            start = sequence % self._count * self._buffer_bytes
            frame = bytes(self._memory[start : start + size])
        else:
            frame = self._read_apart(size, ancillary)
        self._next = sequence + 1
        if self._next % self._interval == 0:
            self._acknowledge()
        return frame

    def interrupt(self) -> None:
        self._interrupted = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # no thread may be in `read`
        self._socket.close()

    def _read_apart(self, size: int, ancillary: list[tuple[int, int, bytes]]) -> bytes:
        if not ancillary:
            raise RingError(
                f"a frame of {size} bytes arrived without its descriptor: raise ulimit -n",
                self.rank,
            )
        (descriptor,) = struct.unpack("i", ancillary[0][2])
        try:
            # Not os.read: all readers share the descriptor's position.
            with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as memory:
                return memory[:]
        finally:
            os.close(descriptor)

    def _acknowledge(self) -> None:
        # An ended writer's last frames may still be read; the next `read` reports the end.
        with suppress(ConnectionError):
            self._socket.send(_FRAMES_READ.pack(self._next), socket.MSG_DONTWAIT)

    def _lost(self) -> RingError:
        if self._interrupted:
            return RingInterruptedError(
                f"the ring was shut down while it waited for {peer_name(self.rank)}", self.rank
            )
        return PeerLostError(self.rank)
