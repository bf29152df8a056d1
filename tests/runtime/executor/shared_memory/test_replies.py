"""All ends in one process; test_channel.py has them in several."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kvasir.executor.shared_memory.channel import NoReplyError, ReplyReader
from kvasir.executor.shared_memory.ring import PeerLostError, RingInterruptedError, RingReader, RingWriter

WORKERS = 3
COUNT = 4
SIZE = 64


@dataclass
class Replies:
    reader: ReplyReader
    workers: list[RingWriter]


@pytest.fixture
def replies() -> Iterator[Replies]:
    rings, workers = [], []
    for rank in range(WORKERS):
        memory = memoryview(bytearray(COUNT * SIZE))
        mine, theirs = socket.socketpair()
        rings.append(RingReader(memory, COUNT, rank, mine))
        workers.append(RingWriter(memory, COUNT, [(None, theirs)]))
    reader = ReplyReader(rings)
    yield Replies(reader, workers)
    reader.close()
    for worker in workers:
        worker.close()


def test_read_returns_the_bodies_by_rank(replies: Replies) -> None:
    for rank in (2, 0, 1):
        replies.workers[rank].write(b"%d" % rank * rank * SIZE)
    assert replies.reader.read(0) == [b"", b"1" * SIZE, b"22" * SIZE]


def test_worker_that_is_steps_ahead_keeps_its_order(replies: Replies) -> None:
    first, second, third = replies.workers
    for step in range(3):
        first.write(b"%d" % step)
    for step in range(3):
        second.write(b"%d" % step)
        with pytest.raises(NoReplyError):
            replies.reader.read(0)
        third.write(b"%d" % step)
        assert replies.reader.read(0) == [b"%d" % step] * 3


def test_missing_workers_are_all_named(replies: Replies) -> None:
    replies.workers[1].write(b"1")
    with pytest.raises(NoReplyError, match=r"^no reply within 0.01 s from worker 0, worker 2$") as error:
        replies.reader.read(0.01)
    assert error.value.ranks == (0, 2)
    assert error.value.rank == 0
    replies.workers[0].write(b"0")
    replies.workers[2].write(b"2")
    assert replies.reader.read(0) == [b"0", b"1", b"2"]


def test_first_death_ends_the_wait_for_the_others(replies: Replies) -> None:
    timer = threading.Timer(0.05, replies.workers[2].close)
    timer.start()
    with pytest.raises(PeerLostError, match=r"^worker 2 has ended$") as error:
        replies.reader.read(30)
    assert error.value.rank == 2
    timer.join()


def test_death_of_a_worker_that_has_replied_ends_the_wait(replies: Replies) -> None:
    """Worker 0 hangs in the first step, perhaps because worker 1 has failed in the second one."""
    replies.workers[1].write(b"")
    replies.workers[1].close()
    with pytest.raises(PeerLostError, match=r"^worker 1 has ended$") as error:
        replies.reader.read(30)
    assert error.value.rank == 1


def test_interrupt_ends_a_wait_for_replies(replies: Replies) -> None:
    timer = threading.Timer(0.05, replies.reader.interrupt)
    timer.start()
    with pytest.raises(RingInterruptedError):
        replies.reader.read(30)
    timer.join()
    with pytest.raises(PeerLostError, match=r"^the engine has ended$"):
        replies.workers[0].write(b"")
