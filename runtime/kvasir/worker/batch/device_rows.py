"""The last sampled token of each row on the device: a step can be launched before the host has them."""

import torch
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.worker.batch.request_table import PENDING


class DeviceRows:
    def __init__(self, rows: int, placement: Placement) -> None:
        self.last_tokens = torch.zeros(rows, dtype=torch.int64, device=placement.device)

    def sampled(self, rows: Tensor, tokens: Tensor) -> None:
        """rows [R], tokens [R] int64"""
        self.last_tokens[rows] = tokens

    def token_ids(self, known: Tensor, rows: Tensor | None) -> Tensor:
        # Replaces PENDING in `known` [T] by the last token of `rows` [T]; None: no token is pending.
        return known if rows is None else torch.where(known == PENDING, self.last_tokens[rows], known)
