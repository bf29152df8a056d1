"""Checks that a model can be split over the ranks of an engine, before anything is allocated."""

from dataclasses import replace

import torch

from kvasir.hub.model_info import ModelInfo
from kvasir.layers.moe.experts import Experts
from kvasir.layers.parameter import Placement
from kvasir.models.build_pooling import build_pooling
from kvasir.models.load_model import check_whole
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.registry import ARCHITECTURES
from kvasir.parallel.group import Alone
from kvasir.parallel.parallel_state import ParallelState, UnevenExperts, UnevenSplit


class Planned(Alone):
    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size


def check_ranks(
    info: ModelInfo, context: int, ranks: int, expert_parallel: bool, *, stages: int = 1, engines: int = 1
) -> None:
    """Raise ModelLoadError, which names the number of config.json, if the model cannot be split.

    `ranks`: of a stage; `context`: the longest request in tokens; `engines` share the experts.
    """
    # The first rank of each stage, without memory.
    tensor = Planned(0, ranks)
    data = Planned(0, engines)
    states = [ParallelState(tensor, Planned(stage, stages), expert_parallel, data) for stage in range(stages)]
    build = ARCHITECTURES.get(info.architecture)
    if build is None and info.pooling is None:
        check_whole(info.architecture, states[0])
        return
    whole = Placement(torch.device("meta"), torch.float32, scheme=info.weight_scheme)
    meta = [replace(whole, parallel=state) for state in states]
    try:
        models = [
            build_pooling(info, placement, context)
            if build is None or info.pooling is not None
            else build(info.config, placement, context)
            for placement in meta
        ]
        layers = [layer for model in models for layer in model.modules()]
    except UnevenExperts as error:
        raise ModelLoadError(f"--data-parallel-size {engines}: {error}") from error
    except UnevenSplit as error:
        raise ModelLoadError(f"--tensor-parallel-size {ranks}: {error}") from error
    if expert_parallel and not any(isinstance(layer, Experts) for layer in layers):
        raise ModelLoadError(f"--enable-expert-parallel: {info.architecture} has no experts here: leave it out")
