"""The size of the KV cache in blocks: given on CPU, profiled on a GPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from kvasir.config.hardware.machine import memory_limit, resident_memory
from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.layers.attention import UNSCALED, HeadShape, KVCache, KVScales
from kvasir.layers.attention_backends.choose_backend import NoBackendError, choose_backend
from kvasir.layers.kv import (
    BlockShape,
    FullAttention,
    KVCacheConfig,
    KVGroup,
    PerRequest,
    block_bytes,
    num_memories,
)
from kvasir.layers.parameter import Placement
from kvasir.models.causal_lm import TransformerModel
from kvasir.worker.kv_memory.block_bytes import HostBlockBytes
from kvasir.worker.kv_memory.huge_pages import take, zeroed_memory

# Zeroing new pages during a prompt delays it considerably.
_TAKEN_AHEAD = 512 * 2**20
# Generous, for a graph's nodes.
BYTES_OF_GRAPH = 16 * 2**20
_NO_SCALES: Final = MappingProxyType[int, KVScales]({})
# A request may have to wait for one piece.
_PIECE = 2 * 2**20


def block_shape(heads: HeadShape, block_size: int, dtype: torch.dtype) -> BlockShape:
    name = str(dtype).removeprefix("torch.")
    return BlockShape(block_size, heads.kv_heads, heads.head_dim, name, dtype.itemsize)


def single_group(model: TransformerModel, block_size: int, dtype: torch.dtype) -> tuple[KVGroup, ...]:
    block = block_shape(model.heads, block_size, dtype)
    return (KVGroup(FullAttention(block), tuple(range(len(model.windows)))),)


def check_backends(groups: Sequence[KVGroup], heads: HeadShape, placement: Placement) -> None:
    try:
        for group in groups:
            choose_backend(group.spec, heads, placement)
    except NoBackendError as error:
        raise ConfigError(f"--kv-cache-dtype fp8: {error}: leave it out") from error


def allocate(
    config: KVCacheConfig,
    heads: HeadShape,
    placement: Placement,
    scales: Mapping[int, KVScales] = _NO_SCALES,
) -> list[KVCache]:
    # Groups share memories. Zeros: attention multiplies padding by 0, and 0 times NaN is NaN.
    if isinstance(config.groups[0].spec, PerRequest):
        return []  # the model allocates
    block = config.groups[0].spec.block
    size = (config.num_blocks + 1) * block.num_bytes
    dtype: torch.dtype = getattr(torch, block.dtype)
    memories = [_zeros(size, dtype, placement.device) for _ in range(num_memories(config.groups))]
    caches: dict[int, KVCache] = {}
    for index, group in enumerate(config.groups):
        backend = choose_backend(group.spec, heads, placement)
        for layer, memory in zip(group.layers, memories, strict=False):
            caches[layer] = backend.cache(memory, block, index)
            caches[layer].scales = scales.get(layer, UNSCALED)
    return [caches[layer] for layer in sorted(caches)]


def _zeros(num_bytes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.frombuffer(zeroed_memory(num_bytes), dtype=dtype)
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device).view(dtype)


def block_bytes_of(caches: Sequence[KVCache]) -> HostBlockBytes:
    memories = {cache.blocks.data_ptr(): cache.blocks for cache in caches}
    return HostBlockBytes(
        [blocks.flatten(1).view(torch.uint8).numpy() for blocks in memories.values()], layout="head-major"
    )


def take_ahead(caches: Sequence[KVCache]) -> Iterator[int]:
    """Prefault the first blocks on CPU. Yield the bytes of each piece."""
    memories = {cache.blocks.data_ptr(): cache.blocks.nbytes for cache in caches}
    for start in range(0, _TAKEN_AHEAD // max(1, len(memories)), _PIECE):
        for address, num_bytes in memories.items():
            size = min(_PIECE, num_bytes - start)
            if size > 0:
                take(address + start, size)
                yield size


def usable_blocks(settings: ResolvedEngine, available: int, groups: Sequence[KVGroup]) -> int:
    # Without the null block. Raises ConfigError if there is no room for one.
    own = (group.spec.request_bytes for group in groups if isinstance(group.spec, PerRequest))
    states = settings.max_num_seqs * sum(own)
    block_size = block_bytes(groups)
    blocks = settings.num_blocks or (available - states) // block_size - 1
    if blocks < 1 and states:
        raise ConfigError(
            f"{max(0, available) / 2**20:.1f} MiB are left for the requests' caches, and the states of "
            f"{settings.max_num_seqs} requests alone take {states / 2**20:.1f} MiB: lower --max-num-seqs or raise "
            "--kv-cache-memory-bytes (on a GPU --gpu-memory-utilization)"
        )
    if blocks < 1:
        raise ConfigError(
            f"{max(0, available) / 2**20:.1f} MiB are left for the KV cache and its smallest size is "
            f"{2 * block_size / 2**20:.1f} MiB: give it more (--kv-cache-memory-bytes, on a GPU "
            "--gpu-memory-utilization) or use a smaller model"
        )
    return blocks


def check_fits_memory(cache_bytes: int, ranks: int) -> None:
    # Raises ConfigError if weights and full KV caches exceed the container's memory limit.
    # Other caches may not have grown yet.
    used, limit = resident_memory(), memory_limit()
    if used + cache_bytes > limit // ranks:
        shared = f", shared by {ranks} ranks" if ranks > 1 else ""
        raise ConfigError(
            f"the KV cache needs {cache_bytes / 2**30:.2f} GiB, {used / 2**30:.2f} GiB are used with the weights "
            f"loaded, and this container may use {limit / 2**30:.2f} GiB{shared}: raise its memory limit or lower "
            "--kv-cache-memory-bytes"
        )


def profile_gpu(utilization: float, largest_step: Callable[[], None], capture: Callable[[], int]) -> int:
    # The bytes of GPU memory that remain while the largest step runs.
    # Memory of other processes counts as used: two engines that start on one GPU at once get too little.
    # --kv-cache-memory-bytes avoids this.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    largest_step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    free, total = torch.cuda.mem_get_info()
    others = (total - free) - torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    return int(total * utilization) - peak - others - capture()


def captured_bytes(capture_largest: Callable[[], None], count: int) -> int:
    # Graphs share the memory of the largest one's tensors, not of nodes.
    before = torch.cuda.memory_reserved()
    capture_largest()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() - before + count * BYTES_OF_GRAPH
