"""Activation functions by the names that config.json uses."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import torch
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


def plain(x: Tensor, activation: Activation) -> Tensor:
    """x [T, size] → activation(x). On a CPU torch computes the last numbers of a part of x, and each thread has a
    part, by other code than those before: the kernel gives a row the same bits in any step."""
    kernel = _KERNELS.get(activation)
    kernels = kernels_for(x.device, x.dtype) if x.shape[1] % LANES == 0 else None
    if kernel is None or kernels is None:
        return activation(x)
    return kernels.gate(torch.cat((x, torch.ones_like(x)), dim=-1), kernel)


def gated_reference(x: Tensor, activation: Activation) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    # Contiguous: torch computes rows that lie apart by other code than a single row.
    return activation(gate.contiguous()).mul_(up)
