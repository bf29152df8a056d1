"""ScoreHead: a number for each label, from one token of each sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvasir.layers.activation import Activation
from kvasir.layers.linear import Linear
from kvasir.layers.parameter import Placement
from kvasir.models.pooling.vector_head import POOLINGS


@dataclass(frozen=True)
class ScoreHeadConfig:
    mode: str  # a key of POOLINGS
    labels: int
    dense: Activation | None = None  # the activation of a layer before the last; None: there is none
    bias: bool = True


class ScoreHead(nn.Module):
    """Raw scores. `activation`: "sigmoid", "softmax" or "identity", for requests that ask for it."""

    def __init__(self, config: ScoreHeadConfig, size: int, activation: str, placement: Placement) -> None:
        super().__init__()
        self._pooling = POOLINGS[config.mode]
        self._dtype = placement.dtype
        self._between = config.dense
        at = placement.at("head")
        self.dense = None if config.dense is None else Linear(size, size, bias=True, placement=at.at("dense"))
        self.out = Linear(size, config.labels, bias=config.bias, placement=at.at("out"))
        self._activation = activation
        self.size = config.labels

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:  # [T, hidden], [B] → [B, labels] float32
        x = self._pooling(hidden, lengths).to(self._dtype)
        if self.dense is not None and self._between is not None:
            x = self._between(self.dense(x))
        scores: Tensor = self.out(x)
        return scores.float()

    def finish(self, scores: Tensor, activate: bool) -> Tensor:  # [labels]
        if not activate or self._activation == "identity":
            return scores
        return scores.sigmoid() if self._activation == "sigmoid" else torch.softmax(scores, dim=-1)
