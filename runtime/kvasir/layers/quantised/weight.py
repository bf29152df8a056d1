"""The one layout of quantised weights in memory, to which the readers of all formats convert."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir.kernels.nibbles import unpack


@dataclass(frozen=True)
class QuantisedWeight:
    """weight[o, i] = value(numbers[o, i]) * scales[o, i // group], with group = inputs / scales.shape[1].

    value(n) is n for int8 and float8_e4m3fn. For 4 bits it is table[n], or n - zeros[o, i // group].
    """

    # int8 or float8_e4m3fn [outputs, inputs]; or uint8 [outputs, inputs / 2], even inputs in the low half
    numbers: Tensor
    scales: Tensor  # float32 [outputs, groups]; one group: a scale for each output
    zeros: Tensor | None = None  # of 4 bits: uint8 or float32 [outputs, groups]; None: 8
    table: Tensor | None = None  # of 4 bits: float32 [16]
    # int64 [inputs]: numbers[:, j] belongs to x[:, order[j]] (GPTQ's desc_act)
    order: Tensor | None = None
    # Activations may be rounded to the dtype of the numbers, with a scale for each token.
    quantise_inputs: bool = False

    @property
    def outputs(self) -> int:
        return self.numbers.shape[0]

    @property
    def inputs(self) -> int:
        return self.numbers.shape[1] * (2 if self.numbers.dtype == torch.uint8 else 1)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Return the weight [outputs, inputs] that multiplies x[:, order]."""
        values = self._values()
        groups: Tensor = values.unflatten(1, (self.scales.shape[1], -1))
        return (groups * self.scales[:, :, None]).flatten(1).to(dtype)

    def _values(self) -> Tensor:  # float32 [outputs, inputs]
        if self.numbers.dtype != torch.uint8:
            return self.numbers.float()
        numbers = unpack(self.numbers, 4)
        if self.table is not None:
            return self.table[numbers.int()]
        if self.zeros is None:
            return numbers.float() - 8
        groups: Tensor = numbers.unflatten(1, (self.zeros.shape[1], -1))
        return (groups.float() - self.zeros[:, :, None].float()).flatten(1)
