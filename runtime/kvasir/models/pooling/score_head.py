"""ScoreHead: a number for each label, from one token of each sequence."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvasir.layers.activation import Activation
from kvasir.layers.linear import Linear
from kvasir.layers.norm import Norm
from kvasir.layers.parameter import Placement
from kvasir.models.pooling.vector_head import POOLINGS


@dataclass(frozen=True)
class ScoreHeadConfig:
    mode: str  # a key of POOLINGS
    labels: int
    dense: Activation | None = None  # the activation of a layer before the last; None: there is none
    bias: bool = True
    dense_bias: bool = True
    norm: Callable[[int, Placement], Norm] | None = None  # of the layer before the last


class ScoreHead(nn.Module):
    """Raw scores. `activation`: "sigmoid", "softmax" or "identity", for requests that ask for it."""

    def __init__(self, config: ScoreHeadConfig, size: int, activation: str, placement: Placement) -> None:
        super().__init__()
        self._pooling = POOLINGS[config.mode]
        self._dtype = placement.dtype
        self._between = config.dense
        at = placement.at("head")
        has_dense = config.dense is not None
        self.dense = Linear(size, size, bias=config.dense_bias, placement=at.at("dense")) if has_dense else None
        self.norm = None if config.norm is None else config.norm(size, at)
        self.out = Linear(size, config.labels, bias=config.bias, placement=at.at("out"))
        self._activation = activation
        self.size = config.labels

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:  # [T, hidden], [B] → [B, labels] float32
        x = self._pooling(hidden, lengths).to(self._dtype)
        if self.dense is not None and self._between is not None:
            x = self._between(self.dense(x))
        if self.norm is not None:
            x = self.norm(x)
        scores: Tensor = self.out(x)
        return scores.float()

    def finish(self, scores: Tensor, activate: bool) -> Tensor:  # [labels]
        if not activate or self._activation == "identity":
            return scores
        return scores.sigmoid() if self._activation == "sigmoid" else torch.softmax(scores, dim=-1)
