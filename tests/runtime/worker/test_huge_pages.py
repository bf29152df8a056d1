import mmap

import numpy as np
import torch

from kvasir.layers.attention import HeadShape
from kvasir.layers.kv import FullAttention, KVCacheConfig, KVGroup, block_bytes
from kvasir.layers.parameter import Placement
from kvasir.worker.kv_memory import huge_pages
from kvasir.worker.kv_memory.cache_memory import allocate, block_shape, take_ahead
from kvasir.worker.kv_memory.huge_pages import collapse, zeroed_memory

MIB = 2**20
PAGE = mmap.PAGESIZE


def taken(address: int, size: int) -> int:
    """Bytes of this memory that the machine has given, read from the page table: what the process's other threads
    take and give back meanwhile does not count."""
    pages = np.fromfile("/proc/self/pagemap", np.uint64, count=size // PAGE, offset=address // PAGE * 8)
    return int(np.count_nonzero(pages >> np.uint64(63))) * PAGE


def test_zeroed_memory_is_taken_as_it_is_used() -> None:
    view = np.frombuffer(zeroed_memory(512 * MIB), np.uint8)
    assert taken(view.ctypes.data, view.nbytes) == 0
    assert not view[:: 128 * MIB].any()
    assert taken(view.ctypes.data, view.nbytes) <= 16 * MIB  # huge pages of zeros, shared with everybody
    view[: 128 * MIB] = 1
    assert 128 * MIB <= taken(view.ctypes.data, view.nbytes) <= 144 * MIB


def test_the_first_of_a_cache_is_taken_ahead_and_stays_zero() -> None:
    heads = HeadShape(heads=1, kv_heads=1, head_dim=64)
    groups = (KVGroup(FullAttention(block_shape(heads, 16, torch.bfloat16)), (0, 1, 2, 3)),)
    cpu = Placement(torch.device("cpu"), torch.bfloat16)
    small, large = (
        allocate(KVCacheConfig(groups, size * MIB // block_bytes(groups) - 1), heads, cpu) for size in (8, 1024)
    )
    for caches, least, most in ((small, 8, 8), (large, 512, 520)):
        assert least * MIB <= sum(take_ahead(caches)) <= most * MIB
        size = sum(taken(cache.blocks.data_ptr(), cache.blocks.nbytes) for cache in caches)
        assert least * MIB <= size <= most * MIB
    assert not any(cache.blocks[:: 2**10].any() for cache in (*small, *large))


def test_collapsing_changes_no_content() -> None:
    content = np.random.default_rng(0).integers(0, 255, 64 * MIB, np.uint8)
    copy = content.copy()
    collapse()
    assert np.array_equal(content, copy)


def test_only_anonymous_memory_in_use_is_collapsed() -> None:
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
