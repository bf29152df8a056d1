"""The bytes and operations that a step of a model cannot avoid, by hand."""

from pathlib import Path

from kvasir.benchmark.device_use import decode_bytes, prefill_operations
from kvasir.hub.model_info import load_model_info
from kvasir.layers.kv import BlockShape, FullAttention, KVGroup, SlidingWindow
from kvasir.models.product_weights import ProductWeights, product_weights
from runtime.models.tiny import MODELS, llama, save

BLOCK = BlockShape(16, 2, 8, "bfloat16", 2)
"""K and V of a token take 64 bytes."""


def test_a_decode_reads_weights_once_and_its_contexts() -> None:
    groups = [KVGroup(FullAttention(BLOCK), (0, 2)), KVGroup(SlidingWindow(BLOCK, 100), (1,))]
    weights = ProductWeights(900, 100, 2000)
    assert decode_bytes(weights, groups, rows=3, context=50) == 2000 + 3 * 3 * 50 * 64
    assert decode_bytes(weights, groups, rows=3, context=500) == 2000 + 3 * (2 * 500 + 100) * 64


def test_a_prefill_multiplies_one_token_by_the_head() -> None:
    assert prefill_operations(ProductWeights(900, 100, 2000), prompts=2, tokens=7) == 2 * (7 * 900 + 2 * 100)


def test_the_embedding_is_a_product_only_if_it_is_the_head_too(tmp_path: Path) -> None:
    model = llama()
    products = [name for name, weight in model.named_parameters() if weight.dim() == 2 and "embed" not in name]
    expected = sum(model.get_parameter(name).numel() for name in products)
    head = model.get_parameter("lm_head.weight").numel()
    found = product_weights(load_model_info(save(model, tmp_path)), "bfloat16")
    assert found == ProductWeights(expected - head, head, 2 * expected)


def test_experts_are_not_counted(tmp_path: Path) -> None:
    assert product_weights(load_model_info(save(MODELS["qwen3-moe"](), tmp_path)), "float32") is None
