"""Normalisation over the last dimension: hidden states, or each head's queries and keys."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.kernels.cpu import LANES, kernels_for
from kvasir.layers.parameter import Placement, new_parameter


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich, 2019), computed in float32 and rounded once.

    Written out: on CPU torch's rms_norm is a chain of more operations with larger intermediates, 10 times slower on
    prefills.
    """

    _shift = 0.0

    def __init__(self, size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.weight = new_parameter(size, placement=placement)
        self._eps = eps
        self._kernels = kernels_for(placement.device, placement.dtype) if size % LANES == 0 else None

    def forward(self, x: Tensor) -> Tensor:  # [..., size]
        if self._kernels is not None and x.dtype == self.weight.dtype:
            return self._kernels.rms_norm(x, self.weight, self._eps, self._shift)
        return self.reference(x)

    def reference(self, x: Tensor) -> Tensor:
        return self._unit(x).mul_(self.weight).to(x.dtype)

    def _unit(self, x: Tensor) -> Tensor:
        """x at a root mean square of 1, as a float32 copy."""
        exact = x.float() if x.dtype != torch.float32 else x.clone()
        length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)  # [..., 1]
        return exact.mul_(length.square_().div_(x.shape[-1]).add_(self._eps).rsqrt_())


class OffsetRMSNorm(RMSNorm):
    """Gemma's: the weight is stored as its distance from 1, which is added in float32 to lose nothing of it."""

    _shift = 1.0

    def reference(self, x: Tensor) -> Tensor:
        exact = self._unit(x)
        return exact.addcmul_(exact, self.weight.float()).to(x.dtype)


class LayerNorm(nn.Module):
    """Layer normalisation (Ba et al., 2016) with scale and shift."""

    def __init__(self, size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.weight = new_parameter(size, placement=placement)
        self.bias = new_parameter(size, placement=placement)
        self._shape = (size,)
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:  # [..., size]
        return F.layer_norm(x, self._shape, self.weight, self.bias, self._eps)
