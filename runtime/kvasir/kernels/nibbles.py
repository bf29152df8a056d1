"""Numbers of 4 bits in bytes and words. Imports no triton."""

import torch
from torch import Tensor


def pack_nibbles(numbers: Tensor) -> Tensor:
    # 0 to 15 [outputs, inputs] → [outputs, inputs / 2], even inputs in the low half
    return numbers[:, 0::2] | (numbers[:, 1::2] << 4)


def as_bytes(words: Tensor) -> Tensor:
    # int32 [rows, columns] → uint8 [rows, columns * 4]. Torch's machines are little-endian.
    return words.contiguous().view(torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Return uint8 [rows, columns * 8 / bits], the lowest bits first.

    >>> unpack(torch.tensor([[0x10, 0x32]], dtype=torch.uint8), 4).tolist()
    [[0, 1, 2, 3]]
    """
    if bits == 8:
        return packed
    return torch.stack((packed & 15, packed >> 4), dim=2).flatten(1)


def swap_nibbles(numbers: Tensor) -> Tensor:
    return (numbers << 4) | (numbers >> 4)
