"""Activation functions by their names in config.json."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.kernels.choose_operations import operations_for
from kvasir.kernels.cpu import kernels_for
from kvasir.kernels.fused_operations import Activation as Kernel

Activation = Callable[[Tensor], Tensor]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square_()


ACTIVATIONS: Final = MappingProxyType[str, Activation](
    {
        "silu": F.silu,
        "swish": F.silu,
        "gelu": F.gelu,
        "gelu_new": _gelu_tanh,
        "gelu_pytorch_tanh": _gelu_tanh,
        "gelu_fast": _gelu_tanh,
        "relu": F.relu,
        "relu2": _relu_squared,
    }
)

KERNELS: Final = MappingProxyType[Activation, Kernel]({F.silu: Kernel.SILU, _gelu_tanh: Kernel.GELU_TANH})


@dataclass(frozen=True)
class ClampedSwiGLU:
    """The activation of gpt-oss: gate * sigmoid(alpha * gate) * (up + 1), of clamped numbers."""

    alpha: float
    limit: float

    def __call__(self, x: Tensor) -> Tensor:  # [T, 2 * size] → [T, size]
        gate, up = x.chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        # gate * sigmoid(alpha * gate) is silu(alpha * gate) / alpha, for which there are kernels.
        return gated(torch.cat((gate * self.alpha, (up + 1) / self.alpha), dim=-1), F.silu)


def gated(x: Tensor, activation: Activation) -> Tensor:  # [T, 2 * size] → [T, size]
    if isinstance(activation, ClampedSwiGLU):
        return activation(x)
    kernel = KERNELS.get(activation)
    operations = operations_for(x.device, x.dtype)
    if kernel is None or operations is None or not operations.takes_gate(x.shape[1] // 2):
        return gated_reference(x, activation)
    return operations.gate(x, kernel)


def plain(x: Tensor, activation: Activation) -> Tensor:
    # Torch computes the end of each thread's part by other code: a row's bits would depend on other rows.
    kernel = KERNELS.get(activation)
    kernels = kernels_for(x.device, x.dtype)
    if kernel is None or kernels is None or not kernels.takes_gate(x.shape[1]):
        return activation(x)
    return kernels.gate(torch.cat((x, torch.ones_like(x)), dim=-1), kernel)


def sigmoid(x: Tensor) -> Tensor:
    # Torch computes the end of each thread's part by other code, except in functions of rows.
    if x.device.type != "cpu":
        return x.sigmoid()
    return torch.stack((x, torch.zeros_like(x)), dim=-1).softmax(dim=-1)[..., 0]


def gated_reference(x: Tensor, activation: Activation) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    # Torch computes strided rows by other code than a single row.
    return activation(gate.contiguous()).mul_(up)
