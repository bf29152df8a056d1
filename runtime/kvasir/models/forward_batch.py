"""The input of a model in one step, and the results of a model or a pipeline stage.

A feature with more input (images, an encoder's states) adds a field with a default. Models without the feature must
reject a batch that sets it.
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
    """The residual stream between two stages. The receiving stage overwrites it."""

    residual: Tensor  # [T, hidden]


@dataclass(frozen=True)
class ForwardBatch:
    """T tokens of all requests of a step, side by side."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    # By KV group: `attention[cache.group]` is the plan of the layer that owns `cache`.
    attention: Mapping[int, AttentionPlan]
    # By layer of this process.
    caches: Sequence[KVCache]
    arrived: Intermediate | None = None
    """The result of the stage before; None on the first stage."""

    @property
    def residual(self) -> Tensor:
        """The residual stream that has arrived [T, hidden]."""
        assert self.arrived is not None, "a stage after the first begins with the result of the stage before"
        return self.arrived.residual
