"""Loads a model that makes vectors or scores."""

from collections.abc import Callable

from kvasir.hub.model_info import ModelInfo
from kvasir.hub.weights import weight_files
from kvasir.layers.linear import finish_layers
from kvasir.layers.parameter import Placement
from kvasir.models.build_pooling import build_pooling
from kvasir.models.causal_lm import Pools
from kvasir.models.dummy_weights import fill_with_random_numbers
from kvasir.models.loader import load_weights


def load_pooling(
    info: ModelInfo, placement: Placement, context: int, progress: Callable[[int, int], None], load_format: str
) -> Pools:
    """Load a model, or the part of this rank. Arguments and errors are those of `load_model`."""
    model = build_pooling(info, placement, context)
    if load_format == "dummy":
        fill_with_random_numbers(model, progress)
    else:
        load_weights(model, weight_files(info.path), progress)
    finish_layers(model.modules())
    return model
