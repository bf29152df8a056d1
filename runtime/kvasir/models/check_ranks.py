"""Checks before anything is read or allocated whether a model can be split over the ranks of an engine."""

import torch

from kvasir.hub.model_info import ModelInfo
from kvasir.layers.moe import Experts
from kvasir.layers.parameter import Placement
from kvasir.models.load_model import not_split
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.registry import ARCHITECTURES
from kvasir.parallel.group import Alone
from kvasir.parallel.parallel_state import ParallelState


class _Planned(Alone):
    """The first rank of a group that does not exist yet."""

    def __init__(self, size: int) -> None:
        self.size = size


def check_ranks(info: ModelInfo, context: int, ranks: int, expert_parallel: bool) -> None:
    """Raise ModelLoadError if the model cannot be split; the message names the number of config.json.

    The layers of the first rank are made without memory. `context`: tokens of the longest request.
    """
    build = ARCHITECTURES.get(info.architecture)
    if build is None:
        raise not_split(info.architecture)
    parallel = ParallelState(_Planned(ranks), expert_parallel=expert_parallel)
    model = build(info.config, Placement(torch.device("meta"), torch.float32, parallel), context)
    if expert_parallel and not any(isinstance(layer, Experts) for layer in model.modules()):
        raise ModelLoadError(f"--enable-expert-parallel: {info.architecture} has no experts here: leave it out")
