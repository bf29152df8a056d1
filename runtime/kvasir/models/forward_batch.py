"""The batch of tokens that a model computes in one step, and the results of a model or of a part of it.

A feature that gives models more input (embeddings of images, states of an encoder) adds a field with a default.
Models that support the feature read the field; the others must reject a batch that has it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvasir.layers.attention import AttentionPlan, KVCache


@dataclass(frozen=True)
class Hidden:
    """The states after the last layer."""

    last: Tensor  # [T, hidden], normalised


@dataclass(frozen=True)
class Intermediate:
    """The residual stream between two parts of a model's layers; the part that receives it overwrites it."""

    residual: Tensor  # [T, hidden]


@dataclass(frozen=True)
class ForwardBatch:
    """T tokens of all requests of a step, side by side."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    attention: Mapping[int, AttentionPlan]
    """By number of the KV group: `attention[cache.group]` is the plan of the layer that owns `cache`."""
    caches: Sequence[KVCache]
    """By layer, of the layers that this process computes."""
    arrived: Intermediate | None = None
    """The result of the stage before; None: the first stage begins with the tokens' embeddings."""

    @property
    def residual(self) -> Tensor:
        """The residual stream that has arrived [T, hidden]."""
        assert self.arrived is not None, "a stage after the first begins with the result of the stage before"
        return self.arrived.residual
