"""The element-wise operations between a layer's matrix products, each in one pass over memory.

The kernels of every device implement this protocol; choose_operations.py chooses them. Each operation has a
`takes_…` that returns whether it supports a size. Kernels receive addresses, so they raise TypeError for numbers of
another type than their own, and ValueError for shapes that do not fit.
"""

from enum import IntEnum
from typing import Protocol

from torch import Tensor


class Activation(IntEnum):
    """As in kernels.c."""

    SILU = 0
    GELU_TANH = 1


class FusedOperations(Protocol):
    """For one device and one type of number. Each result is computed in float32 and rounded once."""

    def takes_norm(self, size: int) -> bool: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        """x [..., size] at a root mean square of 1, times (weight [size] + shift)"""
        ...

    def rms_norm_(self, x: Tensor, weight: Tensor, eps: float, shift: float) -> None:
        """The same in place. x [T, heads, size], of any stride between tokens."""
        ...

    def add_rms_norm_(self, x: Tensor, added: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        """Add `added` to x [T, size] in place, rounded, and return the `rms_norm` of the sum."""
        ...

    def takes_gate(self, size: int) -> bool: ...

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        """x [T, 2 * size] → activation(x[:, :size]) * x[:, size:]"""
        ...

    def takes_rotation(self, dim: int) -> bool: ...

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotate the first `dim` numbers of each head in place, by the numbers of a Rotation.

        x [T, heads, head_dim], of any stride between tokens; cos, sin [T, 1, dim].
        """
        ...
