"""Restricts rows of the logits to the tokens that the grammars of their requests allow.

A mask comes packed, with a bit for each token of the vocabulary: bit i of the little-endian words of 32 bits is set
if token i is allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvasir.sampling.logits import LogitChanges


@dataclass(frozen=True)
class TokenMasks:
    """The masks of N rows."""

    rows: Tensor  # [N] their places in the logits
    allowed: Tensor  # [N, V] bool

    @classmethod
    def unpack(cls, packed: bytes, rows: Sequence[int], vocab_size: int, device: torch.device) -> "TokenMasks":
        """`packed`: the masks of these rows, one after the other."""
        bits = np.frombuffer(packed, np.uint8).reshape(len(rows), -(-vocab_size // 32) * 4)
        allowed = np.unpackbits(bits, axis=1, count=vocab_size, bitorder="little")  # [N, V]
        return cls(
            torch.tensor(rows).to(device, non_blocking=True),
            torch.from_numpy(allowed.view(np.bool_)).to(device, non_blocking=True),
        )

    def apply_(self, logits: Tensor, changes: LogitChanges | None) -> None:
        """Apply the masks, then the changes. logits: [R, V] float32, changed in place.

        If the changes exclude every token that a mask allows, that row has its mask only: the grammar decides.
        """
        masked = logits[self.rows].masked_fill_(~self.allowed, -torch.inf)  # [N, V]
        logits[self.rows] = masked
        if changes is not None:
            changes.apply_(logits)
            changed = logits[self.rows]  # [N, V]
            is_empty = (changed == -torch.inf).all(dim=-1, keepdim=True)  # [N, 1]
            logits[self.rows] = torch.where(is_empty, masked, changed)
