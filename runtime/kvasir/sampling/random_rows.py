"""RandomRows: the rows of a step that are sampled at random, with their parameters as tensors."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RandomRows:
    """N rows of one kind: with min-p or not, with top-k or top-p or not."""

    rows: Tensor  # [N] their places in the logits
    temperature: Tensor  # [N, 1] float32
    seeds: Tensor  # [N] int64
    positions: Tensor  # [N] int64: output tokens of the request so far
    top_k: Tensor | None  # [N, 1] int64, the vocabulary's size where off; None: no row of these is filtered
    top_p: Tensor | None  # [N, 1] float64, infinite where off
    min_p: Tensor | None = None  # [N, 1] float32, above 0
