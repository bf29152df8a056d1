"""How many KV blocks fit: from a given size on CPU, from profiling on a GPU. Called by the worker."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kvasir.config.machine import memory_limit, resident_memory
from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.layers.attention import HeadShape, KVCache
from kvasir.layers.parameter import Placement
from kvasir.worker.huge_pages import take, zeroed_memory

_TAKEN_AHEAD = 512 * 2**20
"""Bytes of a KV cache on CPU that are taken from the machine ahead of requests: zeroing new pages takes up to a
fifth of a prompt's time (20 of 110 ms for 128 tokens, 126 M parameters). A larger cache takes the rest as it
fills."""
_PIECE = 2 * 2**20
"""Bytes that are taken at once: milliseconds, for which a request may wait."""


@dataclass(frozen=True)
class CacheShape:
    """The KV cache of all layers."""

    num_layers: int
    block_size: int
    heads: HeadShape
    dtype: torch.dtype

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer."""
        return self.block_size * self.heads.kv_bytes(self.dtype)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.num_layers * self.layer_block_bytes

    def allocate(self, num_blocks: int, placement: Placement) -> list[KVCache]:
        """One cache per layer, of zeros: attention multiplies what padding points at by 0, and 0 times a NaN of
        memory that nobody wrote is NaN."""
        size = (num_blocks, 2, self.heads.kv_heads, self.block_size, self.heads.head_dim)
        if placement.device.type != "cpu":
            return [
                KVCache(torch.zeros(size, dtype=self.dtype, device=placement.device))
                for _ in range(self.num_layers)
            ]
        memories = [zeroed_memory(num_blocks * self.layer_block_bytes) for _ in range(self.num_layers)]
        return [KVCache(torch.frombuffer(memory, dtype=self.dtype).view(size)) for memory in memories]


def take_ahead(caches: Sequence[KVCache]) -> Iterator[int]:
    """Take the first blocks of a KV cache on CPU from the machine, a piece whenever its bytes are asked for."""
    for start in range(0, _TAKEN_AHEAD // len(caches), _PIECE):
        for cache in caches:
            size = min(_PIECE, cache.blocks.nbytes - start)
            if size > 0:
                take(cache.blocks.data_ptr() + start, size)
                yield size


def usable_blocks(settings: ResolvedEngine, available: int, block_bytes: int) -> int:
    """KV blocks for requests (the null block is not counted) in `available` bytes, unless a number is set.

    Raises ConfigError if there is no room for any.
    """
    blocks = settings.num_blocks or available // block_bytes - 1
    if blocks < 1:
        raise ConfigError(
            f"{max(0, available) / 2**20:.1f} MiB are left for the KV cache and its smallest size is "
            f"{2 * block_bytes / 2**20:.1f} MiB: give it more (--kv-cache-memory-bytes, on a GPU "
            "--gpu-memory-utilization) or use a smaller model"
        )
    return blocks


def check_fits_memory(cache_bytes: int, ranks: int) -> None:
    """Raises ConfigError if this container would be killed once the KV caches of its ranks fill, weights being
    loaded. Each rank gets an equal share of the limit: what the others hold now says nothing of what their caches
    are yet to take."""
    used, limit = resident_memory(), memory_limit()
    if used + cache_bytes > limit // ranks:
        shared = f", shared by {ranks} ranks" if ranks > 1 else ""
        raise ConfigError(
            f"the KV cache wants {cache_bytes / 2**30:.2f} GiB, {used / 2**30:.2f} GiB are taken with the weights "
            f"loaded, and this container may use {limit / 2**30:.2f} GiB{shared}: raise its memory limit or lower "
            "--kv-cache-memory-bytes"
        )


def profile_gpu(utilization: float, largest_step: Callable[[], None]) -> int:
    """Bytes of GPU memory left for the KV cache when the largest step runs.

    `utilization` is a share of the whole device. What others hold of it (the CUDA context, libraries, other
    processes) is measured after the step and counts as used: two engines that start on one GPU at the same time see
    each other grow and get less than they could; give them --kv-cache-memory-bytes.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    largest_step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    free, total = torch.cuda.mem_get_info()
    others = (total - free) - torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    return int(total * utilization) - peak - others
