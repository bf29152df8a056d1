"""Both ends of a ring in one process; test_channel.py has them in several."""

import errno
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.executor.shared_memory import ring as ring_module
from kvasir.executor.shared_memory.ring import (
    MAX_BUFFERS,
    FrameTooLargeError,
    PeerLostError,
    RingError,
    RingInterruptedError,
    RingReader,
    RingWriter,
    SlowReaderError,
    guaranteed_room,
)

SIZE = 64
"""Bytes of a buffer."""


@contextmanager
def ring(count: int = 4, readers: int = 1) -> Iterator[tuple[RingWriter, list[RingReader]]]:
    memory = memoryview(bytearray(count * SIZE))
    pairs = [socket.socketpair() for _ in range(readers)]
    writer = RingWriter(memory, count, [(rank, mine) for rank, (mine, _) in enumerate(pairs)])
    ends = [RingReader(memory.toreadonly(), count, None, theirs) for _, theirs in pairs]
    try:
        yield writer, ends
    finally:
        writer.close()
        for end in ends:
            end.close()


def frames(sizes: list[int]) -> list[bytes]:
    return [(number.to_bytes(4, "big") * (size // 4 + 1))[:size] for number, size in enumerate(sizes, start=1)]


def refused_for(writer: RingWriter, frame: bytes) -> int | None:
    """Write a frame; return the rank of the reader for which there is no room."""
    try:
        writer.write(frame, 0)
    except SlowReaderError as error:
        return error.rank
    return None


def test_ring_delivers_frames_in_order_to_all_readers() -> None:
    sent = frames([0, 1, SIZE - 1, SIZE, SIZE + 1, 10 * SIZE, 3])
    with ring(count=8, readers=3) as (writer, readers):
        for frame in sent:
            writer.write(frame, 0)
        assert [[reader.read() for _ in sent] for reader in readers] == [sent] * 3


def test_ring_wraps_around() -> None:
    with ring(count=3, readers=2) as (writer, readers):
        for frame in frames([SIZE - number % 5 for number in range(5000)]):
            writer.write(frame, 0)
            assert [reader.read() for reader in readers] == [frame, frame]


def test_frame_is_a_copy() -> None:
    with ring(count=1) as (writer, [reader]):
        writer.write(b"first", 0)
        frame = reader.read()
        writer.write(b"other", 0)
        assert frame == b"first"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.lists(
        st.one_of(st.integers(-3, -1), st.sampled_from([0, 1, SIZE - 1, SIZE, SIZE + 1, 4 * SIZE])), max_size=60
    ),
)
def test_ring_loses_and_overwrites_nothing(count: int, num_readers: int, actions: list[int]) -> None:
    """An action is the size of a frame to write, or -1 - rank: that reader reads."""
    with ring(count, num_readers) as (writer, readers):
        unread: list[deque[bytes]] = [deque() for _ in readers]
        for action in actions:
            if action < 0:
                rank = (-1 - action) % num_readers
                if unread[rank]:
                    assert readers[rank].read() == unread[rank].popleft()
                continue
            frame = os.urandom(action)
            longest = max(map(len, unread))
            slow = refused_for(writer, frame)
            if slow is not None:
                assert len(unread[slow]) >= guaranteed_room(count)
                continue
            assert longest < count, "a frame was overwritten before it was read"
            for queue in unread:
                queue.append(frame)
        for reader, queue in zip(readers, unread, strict=True):
            assert [reader.read() for _ in queue] == list(queue)


def test_writer_waits_for_the_slowest_reader() -> None:
    with ring(count=2, readers=2) as (writer, [fast, slow]):
        writer.write(b"0", 0)
        writer.write(b"1", 0)
        assert [fast.read(), fast.read()] == [b"0", b"1"]
        thread = threading.Thread(target=writer.write, args=(b"2", 30))
        thread.start()
        assert slow.read() == b"0"
        assert fast.read() == b"2"
        thread.join()
        assert [slow.read(), slow.read()] == [b"1", b"2"]


def test_slow_reader_is_named_and_loses_nothing() -> None:
    with ring(count=2, readers=2) as (writer, [fast, slow]):
        for frame in (b"0", b"1"):
            writer.write(frame, 0)
            fast.read()
        with pytest.raises(
            SlowReaderError, match=r"^worker 1 has not acknowledged frame 0 within 0.05 s, so frame 2"
        ) as error:
            writer.write(b"lost", 0.05)
        assert error.value.rank == 1
        assert slow.read() == b"0"
        writer.write(b"2", 0)
        assert [slow.read(), slow.read(), fast.read()] == [b"1", b"2", b"2"]


def test_reader_gets_all_frames_before_the_end_of_the_writer() -> None:
    with ring(count=4) as (writer, [reader]):
        sent = frames([5, 5 * SIZE, 5, 5])
        for frame in sent:
            writer.write(frame, 0)
        writer.close()
        assert [reader.read() for _ in sent] == sent
        with pytest.raises(PeerLostError, match=r"^the engine has ended$"):
            reader.read()


@pytest.mark.parametrize("size", [1, 2 * SIZE])
def test_writer_reports_a_reader_that_has_ended(size: int) -> None:
    with ring(count=4, readers=2) as (writer, readers):
        readers[1].close()
        with pytest.raises(PeerLostError, match=r"^worker 1 has ended$") as error:
            writer.write(bytes(size), 0)
        assert error.value.rank == 1


def test_blocked_writer_is_woken_by_the_end_of_any_reader() -> None:
    """Also of one that is not the slowest."""
    with ring(count=1, readers=2) as (writer, [fast, _slow]):
        writer.write(b"0", 0)
        fast.read()
        timer = threading.Timer(0.05, fast.close)
        timer.start()
        with pytest.raises(PeerLostError, match=r"^worker 0 has ended$"):
            writer.write(b"1", 30)
        timer.join()


def test_interrupt_ends_a_blocked_read_and_write() -> None:
    with ring(count=1) as (writer, [reader]):
        timer = threading.Timer(0.05, reader.interrupt)
        timer.start()
        with pytest.raises(RingInterruptedError):
            reader.read()
        timer.join()
        with pytest.raises(PeerLostError):
            writer.write(b"", 0)
    with ring(count=1) as (writer, [reader]):
        writer.write(b"0", 0)
        timer = threading.Timer(0.05, writer.interrupt)
        timer.start()
        with pytest.raises(RingInterruptedError):
            writer.write(b"1", 30)
        timer.join()
        assert reader.read() == b"0"
        with pytest.raises(PeerLostError):
            reader.read()


@pytest.mark.parametrize("size", [1, 2 * SIZE])
def test_ring_that_another_thread_closed_is_interrupted(size: int) -> None:
    """A shutdown may close the ring between two calls."""
    with ring(count=1) as (writer, [reader]):
        for end in (writer, reader):
            end.interrupt()
            end.close()
        for _ in range(2):
            with pytest.raises(RingInterruptedError):
                writer.write(bytes(size), 0)
            with pytest.raises(RingInterruptedError):
                reader.read()


def test_frame_above_the_maximum_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "MAX_FRAME_BYTES", 100)
    with ring() as (writer, [reader]):
        with pytest.raises(FrameTooLargeError, match=r"^a frame of 101 bytes: the maximum is 100$"):
            writer.write(bytes(101), 0)
        writer.write(bytes(100), 0)
        assert reader.read() == bytes(100)


def test_headers_of_the_largest_ring_fit_into_a_socket() -> None:
    with ring(count=MAX_BUFFERS) as (writer, [reader]):
        for _ in range(MAX_BUFFERS):
            writer.write(b"x", 0)
        assert [reader.read() for _ in range(MAX_BUFFERS)] == [b"x"] * MAX_BUFFERS


@pytest.mark.parametrize("count", [0, MAX_BUFFERS + 1])
def test_number_of_buffers_is_bounded(count: int) -> None:
    with pytest.raises(ValueError, match="use 1 to 64"):
        RingWriter(memoryview(bytearray(SIZE)), count, [])


class FailingSocket(socket.socket):
    """Fails to send like the kernel."""

    error = errno.EAGAIN

    def send(self, *_: object) -> int:
        raise OSError(self.error, os.strerror(self.error))

    sendmsg = send


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errno.EAGAIN, r"^the socket to worker 5 is too small: raise sysctl net.core.wmem_default$"),
        (errno.ETOOMANYREFS, r"^sending to worker 5 failed: .* Too many references"),
    ],
)
@pytest.mark.parametrize("size", [1, 2 * SIZE])
def test_error_of_a_socket_is_not_taken_for_a_death(error: int, message: str, size: int) -> None:
    with FailingSocket() as sock:
        sock.error = error
        writer = RingWriter(memoryview(bytearray(4 * SIZE)), 4, [(5, sock)])
        with pytest.raises(RingError, match=message) as raised:
            writer.write(bytes(size), 0)
        assert not isinstance(raised.value, PeerLostError)


def test_large_frames_leave_no_descriptor_open() -> None:
    with ring(readers=2) as (writer, readers):
        before = os.listdir("/proc/self/fd")
        for _ in range(10):
            writer.write(bytes(2 * SIZE), 0)
            for reader in readers:
                reader.read()
        assert os.listdir("/proc/self/fd") == before


def test_reader_rejects_a_frame_out_of_sequence() -> None:
    memory = memoryview(bytearray(4 * SIZE))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        reader = RingReader(memory, 4, 3, theirs)
        mine.send((1).to_bytes(8, "little") + (1).to_bytes(8, "little"))
        with pytest.raises(RingError, match=r"^worker 3 sent frame 1 instead of 0$"):
            reader.read()


def test_reader_reports_a_descriptor_that_did_not_arrive() -> None:
    memory = memoryview(bytearray(4 * SIZE))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        reader = RingReader(memory, 4, 3, theirs)
        mine.send((0).to_bytes(8, "little") + (SIZE + 1).to_bytes(8, "little"))
        with pytest.raises(RingError, match=f"a frame of {SIZE + 1} bytes arrived without its descriptor"):
            reader.read()
