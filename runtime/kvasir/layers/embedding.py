"""Token and position embeddings."""

import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.layers.parameter import Placement, new_parameter


class Embedding(nn.Module):
    """A table of vectors."""

    def __init__(self, entries: int, size: int, placement: Placement) -> None:
        super().__init__()
        self.weight = new_parameter(entries, size, placement=placement)  # [entries, size]

    def forward(self, ids: Tensor) -> Tensor:  # [T] → [T, size]
        return F.embedding(ids, self.weight)
