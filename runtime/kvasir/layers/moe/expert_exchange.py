"""The exchange of tokens between engines that each hold some of the experts."""

import torch
from torch import Tensor

from kvasir.parallel.group import Group


class ExpertExchange:
    """Sends tokens to the engines of their experts, and adds up the results.

    All engines must call the layers in the same order, also without tokens.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    def dispatch(self, x: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """Return the tokens of all engines, their weights and experts, and the tokens per engine."""
        # Collective operations need equal shapes on all ranks.
        counts = self._group.all_gather(torch.tensor([x.shape[0]], device=x.device), 0).tolist()
        if not (most := max(counts)):
            return x, weights, chosen, counts
        row = torch.cat([_as_bytes(part) for part in (x, weights, chosen.int())], dim=1)
        rows = row.new_zeros(most, row.shape[1])
        rows[: row.shape[0]] = row
        gathered = self._group.all_gather(rows, 0).view(len(counts), most, -1)
        gathered = torch.cat([gathered[rank, :count] for rank, count in enumerate(counts)])  # [all T, bytes]
        sizes = [part.shape[1] * part.element_size() for part in (x, weights, chosen.int())]
        parts = [part.contiguous() for part in gathered.split(sizes, dim=1)]
        return parts[0].view(x.dtype), parts[1].view(weights.dtype), parts[2].view(torch.int32).long(), counts

    def combine(self, total: Tensor, counts: list[int]) -> Tensor:
        """Return this engine's rows of the sum over all engines; `total` is [all T, size] float32."""
        if not sum(counts):
            return total
        before = sum(counts[: self._group.rank])
        return self._group.all_reduce(total)[before : before + counts[self._group.rank]]


def _as_bytes(x: Tensor) -> Tensor:  # [T, n] → [T, bytes]
    return x.contiguous().view(torch.uint8)
