"""Token and position embeddings."""

import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.layers.layout import Split
from kvasir.layers.parameter import Placement, new_parameter


class Embedding(nn.Module):
    def __init__(self, entries: int, size: int, placement: Placement) -> None:
        super().__init__()
        self.weight = new_parameter(entries, size, placement=placement)  # [entries, size]

    def forward(self, ids: Tensor) -> Tensor:  # [T] → [T, size]
        return F.embedding(ids, self.weight)


class VocabEmbedding(nn.Module):
    """An embedding whose entries are split over the ranks."""

    def __init__(self, entries: int, size: int, placement: Placement) -> None:
        super().__init__()
        self._group = group = placement.parallel.tensor
        split = Split(0, group.rank, group.size)
        self.weight = new_parameter(entries, size, placement=placement, split=split)  # [own entries, size]
        self._first = split.rank * split.local(entries)

    def forward(self, ids: Tensor) -> Tensor:  # [T] → [T, size]
        if self._group.size == 1:
            return F.embedding(ids, self.weight)
        own = ids - self._first
        elsewhere = (own < 0) | (own >= self.weight.shape[0])
        vectors = F.embedding(own.masked_fill_(elsewhere, 0), self.weight)
        # All ranks but one add zeros, so the sum is exact.
        return self._group.all_reduce(vectors.masked_fill_(elsewhere[:, None], 0))
