"""KV caches for tests of the engine: blocks of any size, groups with and without a sliding window."""

from collections.abc import Sequence

from kvasir.engine.kv.kv_manager import KVManager
from kvasir.layers.kv import BlockShape, FullAttention, KVCacheConfig, KVGroup, NoKVCache, SlidingWindow


def kv_groups(block_size: int, windows: Sequence[int | None] = (None,)) -> tuple[KVGroup, ...]:
    """Return a group of one layer for each of these windows; None: full attention."""
    block = BlockShape(block_size, kv_heads=1, head_dim=8, dtype="float32", dtype_bytes=4)
    specs = [FullAttention(block) if window is None else SlidingWindow(block, window) for window in windows]
    return tuple(KVGroup(spec, (layer,)) for layer, spec in enumerate(specs))


def no_kv_config(block_size: int) -> KVCacheConfig:
    (group,) = kv_groups(block_size)
    return KVCacheConfig((KVGroup(NoKVCache(group.spec.block), ()),), num_blocks=1)


def kv_config(num_blocks: int, block_size: int, windows: Sequence[int | None] = (None,)) -> KVCacheConfig:
    return KVCacheConfig(kv_groups(block_size, windows), num_blocks)


def kv_manager(
    num_blocks: int,
    block_size: int,
    windows: Sequence[int | None] = (None,),
    *,
    prefix_caching: bool = True,
    longest_chunk: int = 64,
) -> KVManager:
    config = kv_config(num_blocks, block_size, windows)
    return KVManager(config, prefix_caching=prefix_caching, longest_chunk=longest_chunk)
