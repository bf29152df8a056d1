"""RandomRows: the rows of a step that are sampled at random, with their parameters as tensors."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RandomRows:
    """N rows with the same kinds of filters."""

    rows: Tensor  # [N] their places in the logits
    temperature: Tensor  # [N, 1] float32
    seeds: Tensor  # [N] int64
    positions: Tensor  # [N] int64: output tokens so far
    top_k: Tensor | None  # [N, 1] int64, V if off; None: no row is filtered
    top_p: Tensor | None  # [N, 1] float64, infinite if off
    min_p: Tensor | None = None  # [N, 1] float32, above 0
