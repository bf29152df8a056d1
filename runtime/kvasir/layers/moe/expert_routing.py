"""How a layer chooses the experts of each token, and weights them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from kvasir.layers.activation import sigmoid
from kvasir.layers.layout import Layout
from kvasir.layers.parameter import OneOf, Placement, Source, TensorLoader, parameter_with

# Weights are divided by their sum, or at least by this.
_MIN_SUM: Final = 1e-20


class Routing(Protocol):
    @property
    def count(self) -> int: ...  # experts

    @property
    def top_k(self) -> int: ...  # experts of a token

    def router(self, placement: Placement) -> nn.Module:
        """Return a module: logits [T, count] float32 → weights [T, top_k] float32, chosen [T, top_k] int64."""
        ...


def softmax_scores(logits: Tensor) -> Tensor:
    return logits.softmax(dim=-1)


@dataclass(frozen=True)
class TopScores:
    """The experts with the highest scores.

    A softmax of the chosen logits alone is `renormalise` with `softmax_scores`.
    """

    count: int
    top_k: int
    renormalise: bool = False  # a token's weights sum to 1
    score: Callable[[Tensor], Tensor] = softmax_scores
    scale: float = 1.0  # of the weights
    # A bias of the scores, from the checkpoint, chooses the experts but does not weight them (DeepSeek V3).
    corrected: bool = False
    groups: int = 1
    # Only experts of the groups with the highest sums of two scores are chosen.
    top_groups: int = 1

    def router(self, placement: Placement) -> nn.Module:
        return _TopScoresRouter(self, placement)


class _TopScoresRouter(nn.Module):
    def __init__(self, routing: TopScores, placement: Placement) -> None:
        super().__init__()
        self._routing = routing
        self.correction = None
        if routing.corrected:
            layout = Layout((routing.count,))
            self.correction = parameter_with(_FlatLoader(layout), layout.shape, placement, torch.float32)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        routing = self._routing
        scores = routing.score(logits)  # [T, count]
        ranked = scores if self.correction is None else scores + self.correction
        if routing.score is sigmoid and self.correction is None:
            ranked = logits  # sigmoids of large logits are equal
        if routing.groups > routing.top_groups:
            ranked = _within_groups(ranked, routing.groups, routing.top_groups)
        weights, chosen = ranked.topk(routing.top_k, dim=-1)
        if ranked is not scores:
            weights = scores.gather(1, chosen)
        if routing.renormalise:
            weights = weights / weights.sum(dim=-1, keepdim=True).clamp_(min=_MIN_SUM)
        return weights if routing.scale == 1 else weights * routing.scale, chosen


class _FlatLoader(TensorLoader):
    def fill(self, target: Tensor, source: Source, shard: str) -> None:
        # ERNIE has a row [1, count].
        super().fill(target, OneOf(source, 0) if len(source.shape) == 2 else source, shard)


def _within_groups(scores: Tensor, groups: int, top_groups: int) -> Tensor:
    by_group = scores.view(len(scores), groups, scores.shape[1] // groups)  # [T, groups, experts of a group]
    sums = by_group.topk(min(2, by_group.shape[2]), dim=-1).values.sum(dim=-1)
    best = sums.topk(top_groups, dim=-1).indices
    others = torch.ones_like(sums, dtype=torch.bool).scatter_(1, best, False)
    return by_group.masked_fill(others[:, :, None], -torch.inf).flatten(1)


@dataclass(frozen=True)
class SparseMixer:
    """Two experts, each weighted among those of similar logits (Liu et al., 2024: Phi-3.5-MoE)."""

    count: int
    jitter: float
    top_k: int = 2

    def router(self, placement: Placement) -> nn.Module:
        return _SparseMixerRouter(self.jitter)


class _SparseMixerRouter(nn.Module):
    def __init__(self, jitter: float) -> None:
        super().__init__()
        self._farthest = 2 * jitter

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        first, chosen = self._best(logits, logits)
        second, next_chosen = self._best(logits, logits.scatter(1, chosen, -torch.inf))
        return torch.cat((first, second), dim=1), torch.cat((chosen, next_chosen), dim=1)

    def _best(self, logits: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        # `left`: logits, with -inf for chosen experts
        best, chosen = left.max(dim=-1, keepdim=True)  # [T, 1]
        distance = (best - logits) / logits.abs().clamp(min=best)
        weights = left.masked_fill(distance > self._farthest, -torch.inf).softmax(dim=-1)
        return weights.gather(1, chosen), chosen
