"""The channel between processes, without failures."""

import hashlib
import os
import random
import re
from collections import deque
from pathlib import Path

import pytest

from kvasir.executor.shared_memory import segment
from kvasir.executor.shared_memory.channel import MAX_UNANSWERED_FRAMES, ChannelLayout, EngineChannel, WorkerHandle
from kvasir.executor.shared_memory.segment import GRANULE, SharedMemoryError
from runtime.executor.shared_memory.scripted_worker import WAITING
from runtime.executor.shared_memory.workers import SMALL, running


def test_every_worker_gets_every_frame() -> None:
    with running("echo", "slow", "hash") as workers:
        for step in range(1000):
            frame = b"%d" % step
            assert workers.step(frame) == [frame, frame, hashlib.sha256(frame).digest()]


@pytest.mark.parametrize("workers", [1, 3])
def test_frames_of_all_sizes_with_steps_in_flight(workers: int) -> None:
    """Sizes around the border of a buffer, wrap-around, large frames in between; the readers' pace varies."""
    rng = random.Random(workers)
    border = SMALL.request_bytes
    sizes = [0, 1, border - 1, border, border + 1, 3 * border, 300 * border]
    with running(*["hash", "slow", "slow"][:workers]) as group:
        sent: deque[bytes] = deque()
        for _ in range(1500):
            frame = rng.randbytes(rng.choice(sizes[:-1] if rng.random() < 0.99 else sizes))
            group.write(frame)
            sent.append(frame)
            while sent and (len(sent) == MAX_UNANSWERED_FRAMES or rng.random() < 0.5):
                frame = sent.popleft()
                assert group.read() == [hashlib.sha256(frame).digest(), frame, frame][:workers]
        while sent:
            frame = sent.popleft()
            assert group.read() == [hashlib.sha256(frame).digest(), frame, frame][:workers]


def test_replies_of_all_sizes() -> None:
    with running("large", "large") as workers:
        for size in (0, 1, SMALL.reply_bytes - 2, SMALL.reply_bytes - 1, SMALL.reply_bytes, 10 * 2**20):
            assert workers.step(b"%d" % size) == [b"x" * size] * 2


def test_progress_shows_the_phase_of_each_worker() -> None:
    with running("echo", "deaf") as workers:
        assert workers.await_phase(1, WAITING).step == 0
        workers.write(b"")
        assert workers.await_phase(0, WAITING, step=1).step == 1
        progress = workers.channel.progress[1].read()
        assert progress is not None
        assert progress.step == 0


def test_handle_survives_as_text() -> None:
    handle = WorkerHandle(rank=1, segment=5, requests=7, replies=9, layout=SMALL)
    assert WorkerHandle.from_text(handle.to_text()) == handle


def test_parts_of_the_segment_do_not_overlap() -> None:
    layout = ChannelLayout(request_bytes=1000, reply_bytes=3000)
    memory = memoryview(bytearray(layout.size(2)))
    layout.requests(memory)[:] = b"q" * len(layout.requests(memory))
    for rank in range(2):
        area = memory[layout.worker_offset(rank) :][: layout.worker_size]
        assert layout.worker_offset(rank) % GRANULE == 0
        for part in (layout.replies(area), layout.progress(area)):
            assert set(part) == {0}
            part[:] = b"w" * len(part)
    assert set(layout.requests(memory)) == {ord("q")}


def test_channel_needs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "available_memory", lambda: 2**20)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SharedMemoryError, match=r"^kvasir-executor needs 5.0 MiB of shared memory"):
        EngineChannel(2)
    assert os.listdir("/proc/self/fd") == before


def test_close_frees_descriptors_and_memory() -> None:
    before = os.listdir("/proc/self/fd")
    channel = EngineChannel(2)
    channel.handle(0)
    channel.close_handles()
    channel.close()
    channel.close()
    del channel
    assert os.listdir("/proc/self/fd") == before
    assert "memfd:kvasir-executor" not in Path("/proc/self/maps").read_text()


def test_worker_maps_only_its_own_part_for_writing() -> None:
    with running("echo", "echo") as workers:
        workers.step(b"")
        maps = Path(f"/proc/{workers.processes[1].pid}/maps").read_text()
    parts = re.findall(r"^(\w+)-(\w+) (\S+) (\w+) .*memfd:kvasir-executor", maps, re.MULTILINE)
    sizes = {mode: (int(end, 16) - int(start, 16), int(offset, 16)) for start, end, mode, offset in parts}
    assert sizes == {
        "r--s": (SMALL.requests_size, 0),
        "rw-s": (SMALL.worker_size, SMALL.worker_offset(1)),
    }


def test_worker_does_not_pass_its_ends_on_to_children() -> None:
    with running("echo") as workers:
        workers.step(b"")
        folder = Path(f"/proc/{workers.processes[0].pid}/fdinfo")
        handle = workers.channel.handle(0)
        for descriptor in (handle.requests, handle.replies):
            flags = re.search(r"^flags:\s+(\d+)", (folder / str(descriptor)).read_text(), re.MULTILINE)
            assert flags is not None
            assert int(flags[1], 8) & os.O_CLOEXEC
        assert not (folder / str(handle.segment)).exists()


def test_shared_memory_imports_no_torch() -> None:
    with running("echo") as workers:
        workers.step(b"")
        assert "torch" not in Path(f"/proc/{workers.processes[0].pid}/maps").read_text()
