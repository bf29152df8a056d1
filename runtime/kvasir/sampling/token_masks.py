"""TokenMasks: restrict logits to the tokens of a grammar: bit i of a little-endian mask is token i."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvasir.kernels.triton.device_support import has_kernels
from kvasir.layers.step_memory import copied
from kvasir.sampling.logits import LogitChanges


@dataclass(frozen=True)
class TokenMasks:
    rows: Tensor  # [N]
    allowed: Tensor  # [N, V] bool

    @classmethod
    def unpack(cls, packed: bytes, rows: Sequence[int], vocab_size: int, device: torch.device) -> "TokenMasks":
        bits = np.frombuffer(packed, np.uint8).reshape(len(rows), -(-vocab_size // 32) * 4)
        allowed = np.unpackbits(bits, axis=1, count=vocab_size, bitorder="little")  # [N, V]
        return cls(copied(np.array(rows, np.int64), device), copied(allowed.view(np.bool_), device))

    def apply_(self, logits: Tensor, changes: LogitChanges | None) -> None:
        # logits [R, V] float32
        masked = logits[self.rows].masked_fill_(~self.allowed, -torch.inf)  # [N, V]
        logits[self.rows] = masked
        if changes is not None:
            changes.apply_(logits)
            changed = logits[self.rows]  # [N, V]
            # Changes that leave no token are dropped.
            is_empty = (changed == -torch.inf).all(dim=-1, keepdim=True)  # [N, 1]
            logits[self.rows] = torch.where(is_empty, masked, changed)


@dataclass(frozen=True)
class PackedMasks:
    # for kernels on a GPU
    rows: Tensor  # [N] int64
    words: Tensor  # [N, V / 32] int32

    @classmethod
    def copy(cls, packed: bytes, rows: Sequence[int], device: torch.device) -> "PackedMasks":
        words = np.frombuffer(packed, "<i4").reshape(len(rows), -1).astype(np.int32)
        return cls(copied(np.array(rows, np.int64), device), copied(words, device))

    def apply_(self, logits: Tensor, changes: LogitChanges | None) -> None:
        from kvasir.kernels.triton.sampling.logit_kernels import mask_rows, restore_rows

        mask_rows(logits, self.words, self.rows)
        if changes is not None:
            masked = logits[self.rows]  # [N, V], a copy
            changes.apply_(logits)
            restore_rows(logits, masked, self.rows)


def masks_for(
    packed: bytes, rows: Sequence[int], vocab_size: int, device: torch.device
) -> TokenMasks | PackedMasks:
    if has_kernels(device):
        return PackedMasks.copy(packed, rows, device)
    return TokenMasks.unpack(packed, rows, vocab_size, device)
