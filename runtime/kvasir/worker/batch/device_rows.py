"""What the device keeps of the rows of the request table: the token that each has sampled last.

So a step can be given to the device before the host has the tokens of the step before it.
"""

import torch
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.worker.batch.request_table import PENDING


class DeviceRows:
    def __init__(self, rows: int, placement: Placement) -> None:
        self.last_tokens = torch.zeros(rows, dtype=torch.int64, device=placement.device)
        """By row of the request table."""

    def sampled(self, rows: Tensor, tokens: Tensor) -> None:
        """rows [R], tokens [R] int64"""
        self.last_tokens[rows] = tokens

    def token_ids(self, known: Tensor, rows: Tensor | None) -> Tensor:
        """Return `known` [T] with the last token of its row for each PENDING one.

        rows: [T]; None: no token is pending.
        """
        return known if rows is None else torch.where(known == PENDING, self.last_tokens[rows], known)
