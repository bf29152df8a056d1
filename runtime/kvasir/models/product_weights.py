"""Counts the weights of a model's products, from its config."""

from dataclasses import dataclass

import torch

from kvasir.hub.model_info import ModelInfo
from kvasir.layers.linear import Linear, VocabHead
from kvasir.layers.moe.sparse_moe import SparseMoE
from kvasir.layers.parameter import Placement
from kvasir.models.model_load_error import UnsupportedSetting
from kvasir.models.registry import ARCHITECTURES
from kvasir.parallel.parallel_state import SINGLE


@dataclass(frozen=True)
class ProductWeights:
    # Multiply each token.
    layers: int
    # Multiply each sampled token, and the last one of a prompt.
    head: int
    # With the scales of quantised weights.
    num_bytes: int


def product_weights(model: ModelInfo, dtype: str) -> ProductWeights | None:
    """Count the weights. None: the model has experts (the number varies by token), or is not our code."""
    build = ARCHITECTURES.get(model.architecture)
    if build is None:
        return None
    placement = Placement(  # allocates nothing
        torch.device("meta"), getattr(torch, dtype), SINGLE, scheme=model.weight_scheme
    )
    try:
        layers = list(build(model.config, placement, model.max_model_len).modules())
    except UnsupportedSetting:
        return None
    if any(isinstance(layer, SparseMoE) for layer in layers):
        return None
    weights = [layer for layer in layers if isinstance(layer, Linear)]
    head = sum(layer.num_weights for layer in weights if isinstance(layer, VocabHead))
    total = sum(layer.num_weights for layer in weights)
    return ProductWeights(total - head, head, sum(map(_num_bytes, weights)))


def _num_bytes(layer: Linear) -> int:
    return sum(parameter.nbytes for name, parameter in layer.named_parameters(recurse=False) if name != "bias")
