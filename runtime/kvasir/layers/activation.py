"""Activation functions by the names that config.json uses."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import torch.nn.functional as F
from torch import Tensor


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Final = MappingProxyType[str, Callable[[Tensor], Tensor]](
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
