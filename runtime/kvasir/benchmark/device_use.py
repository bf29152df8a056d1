"""How much of the device's memory bandwidth and arithmetic an engine uses, by the work that a step cannot avoid.

A decode reads each weight of a product once, and K and V of all tokens that its rows see. A prefill multiplies
each of its tokens by the weights of the layers, and the last one of a prompt by those of the head. Further work
of the engine is not counted, so both figures are lower bounds.
"""

from collections.abc import Sequence

from kvasir.layers.kv import KVGroup, SlidingWindow
from kvasir.models.product_weights import ProductWeights


def decode_bytes(weights: ProductWeights, groups: Sequence[KVGroup], rows: int, context: int) -> int:
    """Return the bytes that a decode of so many rows reads, each of which sees `context` tokens."""
    kv = 0
    for group in groups:
        block = group.spec.block
        window = group.spec.window if isinstance(group.spec, SlidingWindow) else context
        kv += len(group.layers) * min(context, window) * block.num_bytes // block.block_size
    return weights.num_bytes + rows * kv


def prefill_operations(weights: ProductWeights, prompts: int, tokens: int) -> int:
    """Return the operations of the products: a multiplication and an addition for each weight. `tokens`: of all
    prompts."""
    return 2 * (weights.layers * tokens + weights.head * prompts)
