"""The element-wise operations between a layer's matrix products, each in one pass over memory.

Unsupported dtypes raise TypeError, unsupported shapes ValueError.
"""

from enum import IntEnum
from typing import Protocol

from torch import Tensor


class Activation(IntEnum):  # the same numbers as in kernels.c
    SILU = 0
    GELU_TANH = 1


class FusedOperations(Protocol):
    """Results are computed in float32 and rounded once."""

    def takes_norm(self, size: int) -> bool: ...

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, shift: float
    ) -> Tensor: ...  # x [..., size] at a root mean square of 1, times (weight [size] + shift)

    def rms_norm_(
        self, x: Tensor, weight: Tensor, eps: float, shift: float
    ) -> None: ...  # x [T, heads, size], any token stride

    def add_rms_norm_(self, x: Tensor, added: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        """Add `added` to x [T, size] in place, and return the `rms_norm` of the rounded sum."""
        ...

    def takes_gate(self, size: int) -> bool: ...

    def gate(
        self, x: Tensor, activation: Activation
    ) -> Tensor: ...  # x [T, 2 * size] → activation(x[:, :size]) * x[:, size:]

    def takes_rotation(self, dim: int) -> bool: ...

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotate the first `dim` numbers of each head in place.

        x [T, heads, head_dim], any token stride; cos, sin [T, 1, dim].
        """
        ...
