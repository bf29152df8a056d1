"""Passes hidden states from one pipeline stage to the next."""

import torch

from kvasir.layers.parameter import Placement
from kvasir.models.forward_batch import Intermediate
from kvasir.parallel.group import Sending


class StageLink:
    def __init__(self, hidden_size: int, placement: Placement) -> None:
        self._group = placement.parallel.pipeline
        self._hidden_size = hidden_size
        self._placement = placement
        self._sending: Sending | None = None

    def receive(self, num_tokens: int) -> Intermediate | None:
        # None on the first stage.
        group = self._group
        if group.rank == 0:
            return None
        x = torch.empty(
            num_tokens, self._hidden_size, dtype=self._placement.dtype, device=self._placement.device
        )  # [T, hidden]
        return Intermediate(group.recv(x, group.rank - 1))

    def send(self, passed: Intermediate) -> None:
        # `passed` must not change any more.
        # At most one result is on its way.
        if self._sending is not None:
            self._sending.wait()
        self._sending = self._group.send(passed.residual, self._group.rank + 1)
