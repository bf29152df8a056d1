"""Activation functions by the names that config.json uses."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import torch.nn.functional as F
from torch import Tensor

from kvasir.kernels.cpu import LANES, kernels_for
from kvasir.kernels.cpu import Activation as Kernel

Activation = Callable[[Tensor], Tensor]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Final = MappingProxyType[str, Activation](
    {
        "silu": F.silu,
        "swish": F.silu,
        "gelu": F.gelu,
        "gelu_new": _gelu_tanh,
        "gelu_pytorch_tanh": _gelu_tanh,
        "gelu_fast": _gelu_tanh,
        "relu": F.relu,
    }
)

_KERNELS: Final = MappingProxyType[Activation, Kernel]({F.silu: Kernel.SILU, _gelu_tanh: Kernel.GELU_TANH})


def gated(x: Tensor, activation: Activation) -> Tensor:
    """x [T, 2 * size] → activation(x[:, :size]) * x[:, size:]"""
    kernel = _KERNELS.get(activation)
    kernels = kernels_for(x.device, x.dtype) if x.shape[1] % (2 * LANES) == 0 else None
    if kernel is None or kernels is None:
        return gated_reference(x, activation)
    return kernels.gate(x, kernel)


def gated_reference(x: Tensor, activation: Activation) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    # Contiguous: torch computes rows that lie apart by other code than a single row.
    return activation(gate.contiguous()).mul_(up)
