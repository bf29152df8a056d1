import numpy as np

from kvasir.config.machine import resident_memory
from kvasir.worker import huge_pages
from kvasir.worker.huge_pages import collapse, zeroed_memory

MIB = 2**20


def test_zeroed_memory_is_taken_as_it_is_used() -> None:
    before = resident_memory()
    memory = zeroed_memory(512 * MIB)
    view = np.frombuffer(memory, np.uint8)
    assert resident_memory() - before < 64 * MIB
    assert not view[:: 128 * MIB].any()
    view[: 128 * MIB] = 1
    assert resident_memory() - before >= 128 * MIB


def test_collapsing_changes_no_content() -> None:
    content = np.random.default_rng(0).integers(0, 255, 64 * MIB, np.uint8)
    copy = content.copy()
    collapse()
    assert np.array_equal(content, copy)


def test_only_anonymous_memory_in_use_is_collapsed_in_whole_huge_pages() -> None:
    smaps = """\
555500100000-555500900000 rw-p 00000000 00:00 0                          [heap]
Size:               8192 kB
Rss:                8192 kB
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Rss:                  12 kB
7f0001000000-7f0001800000 r--p 00000000 fd:00 42                         /usr/lib/libc.so.6
Rss:                8192 kB
7f0002000000-7f0002800000 rw-p 00000000 fd:00 42                         /usr/lib/libc.so.6
Rss:                8192 kB
7f0003000000-7f0003400000 rw-p 00000000 00:00 0
Rss:                4096 kB
7f0004000000-7f0004100000 rw-p 00000000 00:00 0
Rss:                1024 kB
"""
    regions = list(huge_pages._large_regions(smaps))
    assert regions == [(0x555500200000, 0x555500800000), (0x7F0003000000, 0x7F0003400000)]
