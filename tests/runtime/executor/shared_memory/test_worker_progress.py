import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.executor.shared_memory.segment import GRANULE, allocate, map_writable
from kvasir.executor.shared_memory.worker_progress import (
    MAX_PHASE,
    MAX_PLACE,
    MAX_STEP,
    PROGRESS_BYTES,
    ProgressReader,
    ProgressWriter,
)

WRITER = """
import sys
from kvasir.executor.shared_memory.worker_progress import ProgressWriter
from kvasir.executor.shared_memory.segment import GRANULE, map_writable
progress = ProgressWriter(map_writable(int(sys.argv[1]), 0, GRANULE)[:48])
step = 0
while True:
    step += 1
    progress.enter(step, step % 2**16, step % 2**32)
"""


class Stop(Exception):
    pass


class StoppingWords:
    """Words of memory whose writer is stopped before its n-th store."""

    def __init__(self, words: memoryview, stores: int) -> None:
        self._words = words
        self._stores = stores

    def __setitem__(self, index: int, word: int) -> None:
        if self._stores == 0:
            raise Stop
        self._stores -= 1
        self._words[index] = word


def memory() -> memoryview:
    return memoryview(bytearray(PROGRESS_BYTES))


def test_progress_is_none_before_the_first_phase() -> None:
    assert ProgressReader(memory()).read() is None


@given(st.integers(0, MAX_STEP), st.integers(0, MAX_PHASE), st.integers(0, MAX_PLACE))
def test_progress_returns_every_field(step: int, phase: int, place: int) -> None:
    shared = memory()
    before = time.monotonic()
    ProgressWriter(shared).enter(step, phase, place)
    progress = ProgressReader(shared).read()
    assert progress is not None
    assert progress[:3] == (step, phase, place)
    assert before - 1e-6 <= progress.since <= time.monotonic()


def test_progress_returns_the_newest_across_all_versions() -> None:
    shared = memory()
    writer, reader = ProgressWriter(shared), ProgressReader(shared)
    for step in range(2 * 2**16 + 3):
        writer.enter(step, 1)
        progress = reader.read()
        assert progress is not None
        assert progress.step == step


@pytest.mark.parametrize("complete", [0, 1, 2, 3, 2**16 - 1, 2**16])
@pytest.mark.parametrize("stores", [0, 1, 2])
def test_writer_stopped_in_a_write_leaves_the_phase_before(complete: int, stores: int) -> None:
    shared = memory()
    writer, reader = ProgressWriter(shared), ProgressReader(shared)
    for step in range(1, complete + 1):
        writer.enter(step, 1)
    writer._words = StoppingWords(shared.cast("Q"), stores)  # type: ignore[assignment]
    with pytest.raises(Stop):
        writer.enter(complete + 1, 2)
    progress = reader.read()
    assert (progress.step, progress.phase) == (complete, 1) if progress is not None else complete == 0


def test_damaged_memory_is_not_taken_for_progress() -> None:
    shared = memory()
    for index in range(PROGRESS_BYTES):
        shared[index] = index + 1
    assert ProgressReader(shared).read() is None


def test_no_read_is_torn_while_another_process_writes() -> None:
    """And the process is killed at some point of a write."""
    descriptor = allocate("kvasir-progress", GRANULE)
    reader = ProgressReader(map_writable(descriptor, 0, GRANULE)[:PROGRESS_BYTES])
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(descriptor)], pass_fds=[descriptor])
    os.close(descriptor)
    try:
        last, since, seen = 0, 0.0, 0
        while seen < 50_000:
            progress = reader.read()
            if progress is None:
                continue
            seen += 1
            assert progress.phase == progress.step % 2**16
            assert progress.place == progress.step % 2**32
            assert progress.step >= last
            assert since <= progress.since <= time.monotonic()
            last, since = progress.step, progress.since
    finally:
        writer.kill()
        writer.wait()
    assert reader.read() is not None
