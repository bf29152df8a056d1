"""The input of a model in one step, and the results of a model or a pipeline stage.

More input (images, an encoder's states) is a field with a default, which other models must reject.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvasir.layers.attention import AttentionPlan, KVCache


@dataclass(frozen=True)
class Hidden:
    last: Tensor  # [T, hidden], normalised


@dataclass(frozen=True)
class Intermediate:
    """The residual stream between two stages. The receiving stage overwrites it."""

    residual: Tensor  # [T, hidden]


@dataclass(frozen=True)
class ForwardBatch:
    """The T tokens of all requests of a step, concatenated."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    # By KV group: `attention[cache.group]` belongs to the layer of `cache`.
    attention: Mapping[int, AttentionPlan]
    # By layer of this process.
    caches: Sequence[KVCache]
    # From the stage before; None on the first stage.
    arrived: Intermediate | None = None
    # [T], of the texts of a pair; None: all 0. Decoders have none.
    token_types: Tensor | None = None

    @property
    def residual(self) -> Tensor:
        # [T, hidden]
        assert self.arrived is not None, "a stage after the first begins with the result of the stage before"
        return self.arrived.residual
