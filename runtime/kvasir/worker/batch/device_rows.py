"""What the device keeps of the rows of the request table: the token that each has sampled last.

So a step can be given to the device before the host has the tokens of the step before it.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.worker.batch.request_table import PENDING

Ints = npt.NDArray[np.int64]


class DeviceRows:
    def __init__(self, rows: int, placement: Placement) -> None:
        self._device = placement.device
        self.last_tokens = torch.zeros(rows, dtype=torch.int64, device=placement.device)
        """By row of the request table."""

    def sampled(self, rows: Ints, tokens: Tensor) -> None:
        """rows [R], tokens [R] int64"""
        self.last_tokens[self._tensor(rows)] = tokens

    def token_ids(self, known: Ints, rows: Ints) -> Tensor:
        """Return tokens [T] on the device: for a PENDING one the last token of its row. rows: [T]"""
        pending = np.flatnonzero(known == PENDING)
        token_ids = self._tensor(known)
        if len(pending):
            token_ids[self._tensor(pending)] = self.last_tokens[self._tensor(rows[pending])]
        return token_ids

    def _tensor(self, values: Ints) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)
