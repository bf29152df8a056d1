"""Bandwidth and arithmetic of a device by the work that a step cannot avoid: lower bounds."""

from collections.abc import Sequence

from kvasir.layers.kv import KVGroup, SlidingWindow
from kvasir.models.product_weights import ProductWeights


def decode_bytes(weights: ProductWeights, groups: Sequence[KVGroup], rows: int, context: int) -> int:
    # Each weight of a product, and K and V of all tokens that the rows see.
    kv = 0
    for group in groups:
        block = group.spec.block
        window = group.spec.window if isinstance(group.spec, SlidingWindow) else context
        kv += len(group.layers) * min(context, window) * block.num_bytes // block.block_size
    return weights.num_bytes + rows * kv


def prefill_operations(weights: ProductWeights, prompts: int, tokens: int) -> int:
    # Two for each weight: each token is multiplied by the weights of the layers, the last one of a prompt by those
    # of the head.
    return 2 * (weights.layers * tokens + weights.head * prompts)
