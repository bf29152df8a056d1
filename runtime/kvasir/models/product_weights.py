"""Counts the weights of a model's products, from its config."""

from dataclasses import dataclass

import torch

from kvasir.hub.model_info import ModelInfo
from kvasir.layers.linear import Linear
from kvasir.layers.moe import SparseMoE
from kvasir.layers.parameter import Placement
from kvasir.models.registry import ARCHITECTURES
from kvasir.parallel.parallel_state import SINGLE


@dataclass(frozen=True)
class ProductWeights:
    """The weights that each token of a model is multiplied by."""

    numbers: int
    num_bytes: int


def product_weights(model: ModelInfo, dtype: str) -> ProductWeights | None:
    """Count the weights of a model. None: it has experts, which differ from token to token, or is not our code."""
    build = ARCHITECTURES.get(model.architecture)
    if build is None:
        return None
    placement = Placement(torch.device("meta"), getattr(torch, dtype), SINGLE)  # allocates nothing
    layers = list(build(model.config, placement, model.max_model_len).modules())
    if any(isinstance(layer, SparseMoE) for layer in layers):
        return None
    numbers = sum(layer.num_weights for layer in layers if isinstance(layer, Linear))
    return ProductWeights(numbers, numbers * placement.dtype.itemsize)
