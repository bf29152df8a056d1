import errno
import mmap
import os
import re
from pathlib import Path

import pytest

from kvasir.executor.shared_memory import segment
from kvasir.executor.shared_memory.segment import (
    GRANULE,
    SharedMemoryError,
    allocate,
    map_read_only,
    map_writable,
    round_up,
)


def test_allocate_more_than_the_container_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "available_memory", lambda: 3 * 2**20)
    with pytest.raises(
        SharedMemoryError, match=re.escape("rings needs 4.0 MiB of shared memory, and this container")
    ) as e:
        allocate("rings", 4 * 2**20)
    assert "has 3.0 MiB of memory left: raise its memory limit" in str(e.value)
    os.close(allocate("rings", 3 * 2**20))


def test_allocate_reports_an_error_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SharedMemoryError, match=r"^rings cannot get 1.0 MiB of shared memory: .*No space left"):
        allocate("rings", 2**20)
    assert os.listdir("/proc/self/fd") == before


def test_segment_takes_its_pages_at_once() -> None:
    descriptor = allocate("rings", 16 * GRANULE)
    try:
        status = os.fstat(descriptor)
        assert status.st_size == 16 * GRANULE
        assert status.st_blocks * 512 >= 16 * GRANULE
    finally:
        os.close(descriptor)


def test_segment_cannot_shrink_under_its_readers() -> None:
    descriptor = allocate("rings", GRANULE)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 2 * GRANULE)
    finally:
        os.close(descriptor)


def test_segment_has_no_name_in_dev_shm() -> None:
    before = set(os.listdir("/dev/shm"))
    descriptor = allocate("kvasir-unlinked", GRANULE)
    try:
        assert set(os.listdir("/dev/shm")) == before
        assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:kvasir-unlinked")
    finally:
        os.close(descriptor)


def test_views_outlive_the_descriptor_and_end_with_it() -> None:
    descriptor = allocate("kvasir-mapped", 2 * GRANULE)
    writable = map_writable(descriptor, GRANULE, GRANULE)
    readable = map_read_only(descriptor, 0, 2 * GRANULE)
    os.close(descriptor)
    writable[0] = 7
    assert readable[GRANULE] == 7
    with pytest.raises(TypeError):
        readable[0] = 1
    assert "memfd:kvasir-mapped" in Path("/proc/self/maps").read_text()
    del writable, readable
    assert "memfd:kvasir-mapped" not in Path("/proc/self/maps").read_text()


def test_round_up_to_what_mmap_accepts() -> None:
    assert [round_up(size) for size in (1, GRANULE, GRANULE + 1)] == [GRANULE, GRANULE, 2 * GRANULE]
    assert GRANULE == mmap.ALLOCATIONGRANULARITY
