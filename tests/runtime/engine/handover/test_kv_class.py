"""Engines whose KV blocks differ in their bytes are of different KV classes."""

from kvasir.engine.handover.exchange import kv_class
from kvasir.layers.kv import BlockShape, FullAttention, KVCacheConfig, KVGroup


def class_of(block: BlockShape) -> str:
    cache = KVCacheConfig((KVGroup(FullAttention(block), (0, 1)),), num_blocks=4)
    return kv_class("model", "numerics", cache, "head-major", "blake2b")


def test_the_class_depends_on_the_precision_of_the_cache() -> None:
    blocks = [
        BlockShape(16, 2, 64, "bfloat16", 2),
        BlockShape(16, 2, 64, "float16", 2),
        BlockShape(16, 2, 64, "float8_e4m3fn", 1),
        BlockShape(32, 2, 64, "float8_e4m3fn", 1),  # of as many bytes as the first
    ]
    assert len({class_of(block) for block in blocks}) == len(blocks)
    assert class_of(blocks[0]) == class_of(BlockShape(16, 2, 64, "bfloat16", 2))
