"""Numbers of 4 bits in bytes and in int32."""

import torch
from torch import Tensor


def pack_nibbles(numbers: Tensor) -> Tensor:
    """Return uint8 [outputs, inputs / 2] of numbers 0 to 15 [outputs, inputs]: even inputs in the low half."""
    return numbers[:, 0::2] | (numbers[:, 1::2] << 4)


def unpack(words: Tensor, bits: int) -> Tensor:
    """Return uint8 [rows, columns * 32 / bits] of int32 [rows, columns], the lowest bits of a word first.

    >>> unpack(torch.tensor([[0x76543210]], dtype=torch.int32), 4).tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    numbers = words.contiguous().view(torch.uint8)  # little-endian, as all machines that torch supports
    if bits == 8:
        return numbers
    return torch.stack((numbers & 15, numbers >> 4), dim=2).flatten(1)


def swap_nibbles(numbers: Tensor) -> Tensor:
    return (numbers << 4) | (numbers >> 4)
