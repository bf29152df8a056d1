"""ScoreHead: a number for each label, from one token of each sequence, or of each token."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvasir.hub.pooling.label_tokens import LabelTokens
from kvasir.layers.activation import Activation
from kvasir.layers.linear import Linear
from kvasir.layers.norm import Norm
from kvasir.layers.parameter import Placement
from kvasir.models.pooling.vector_head import POOLINGS


@dataclass(frozen=True)
class ScoreHeadConfig:
    mode: str | None  # a key of POOLINGS; None: scores of each token
    labels: int
    dense: Activation | None = None  # the activation of a layer before the last; None: there is none
    bias: bool = True
    dense_bias: bool = True
    norm: Callable[[int, Placement], Norm] | None = None  # of the layer before the last


class _Scores(nn.Module):
    # Raw. `activation`: "sigmoid", "softmax" or "identity", for requests that ask for it.
    def __init__(self, activation: str) -> None:
        super().__init__()
        self._activation = activation

    def finish(self, scores: Tensor, activate: bool) -> Tensor:  # [..., labels]
        if not activate or self._activation == "identity":
            return scores
        return scores.sigmoid() if self._activation == "sigmoid" else torch.softmax(scores, dim=-1)


class ScoreHead(_Scores):
    def __init__(self, config: ScoreHeadConfig, size: int, activation: str, placement: Placement) -> None:
        super().__init__(activation)
        self._pooling = None if config.mode is None else POOLINGS[config.mode]
        self.by_token = config.mode is None
        self._dtype = placement.dtype
        self._between = config.dense
        at = placement.at("head")
        has_dense = config.dense is not None
        self.dense = Linear(size, size, bias=config.dense_bias, placement=at.at("dense")) if has_dense else None
        self.norm = None if config.norm is None else config.norm(size, at)
        self.out = Linear(size, config.labels, bias=config.bias, placement=at.at("out"))
        self.size = config.labels

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:  # [T, hidden], [B] → [B or T, labels] float32
        x = hidden if self._pooling is None else self._pooling(hidden, lengths).to(self._dtype)
        if self.dense is not None and self._between is not None:
            x = self._between(self.dense(x))
        if self.norm is not None:
            x = self.norm(x)
        scores: Tensor = self.out(x)
        return scores.float()


class TokenScoreHead(_Scores):
    """Scores from the logits of some tokens, after the last token of each sequence."""

    by_token = False

    def __init__(self, tokens: LabelTokens, logits: Callable[[Tensor], Tensor], activation: str) -> None:
        super().__init__(activation)
        self._tokens = tokens
        self._logits = logits
        self.size = len(tokens.labels)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:  # [T, hidden], [B] → [B, labels] float32
        logits = self._logits(hidden[lengths.cumsum(0) - 1])[:, self._tokens.ids].float()
        return logits[:, 1:] - logits[:, :1] if self._tokens.is_difference else logits
