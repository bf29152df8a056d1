"""Normalisation over the last dimension."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.kernels.choose_operations import operations_for
from kvasir.kernels.fused_operations import FusedOperations
from kvasir.layers.parameter import Placement, new_parameter


class Norm(nn.Module):
    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Return the normalised x [..., size], after adding `added` to x [T, size] in place."""
        raise NotImplementedError

    def normalise_(self, x: Tensor) -> None:  # x [T, heads, size]
        x.copy_(self(x))


class NoNorm(Norm):
    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        return x if added is None else x.add_(added)


class Scaled(nn.Module):
    """In the place of a norm: multiplies by a constant, in place."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(self._factor)


class RMSNorm(Norm):
    """Root mean square normalisation (Zhang and Sennrich, 2019), computed in float32 and rounded once."""

    shift = 0.0

    def __init__(self, size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.weight = new_parameter(size, placement=placement)
        self.eps = eps
        operations = operations_for(placement.device, placement.dtype)
        self._operations = operations if operations is not None and operations.takes_norm(size) else None

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        fused = self._fused(x)
        if fused is None:
            return self.reference(x if added is None else x.add_(added))
        if added is None:
            return fused.rms_norm(x, self.weight, self.eps, self.shift)
        return fused.add_rms_norm_(x, added, self.weight, self.eps, self.shift)

    def normalise_(self, x: Tensor) -> None:
        fused = self._fused(x)
        if fused is None:
            x.copy_(self.reference(x))
        else:
            fused.rms_norm_(x, self.weight, self.eps, self.shift)

    # Torch's rms_norm is slower on CPUs.
    def reference(self, x: Tensor) -> Tensor:
        return self._unit(x).mul_(self.weight).to(x.dtype)

    def _fused(self, x: Tensor) -> FusedOperations | None:
        return self._operations if x.dtype == self.weight.dtype else None

    def _unit(self, x: Tensor) -> Tensor:
        exact = x.float() if x.dtype != torch.float32 else x.clone()
        length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)  # [..., 1]
        return exact.mul_(length.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_())


class OffsetRMSNorm(RMSNorm):
    shift = 1.0  # Gemma stores weight - 1

    def reference(self, x: Tensor) -> Tensor:
        exact = self._unit(x)
        # 1 + weight would lose bits in bfloat16.
        return exact.addcmul_(exact, self.weight.float()).to(x.dtype)


class LayerNorm(Norm):
    """Layer normalisation (Ba et al., 2016)."""

    has_bias = True

    def __init__(self, size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.weight = new_parameter(size, placement=placement)
        self.bias = new_parameter(size, placement=placement) if self.has_bias else None
        self._shape = (size,)
        self.eps = eps

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        if added is not None:
            x.add_(added)
        return F.layer_norm(x, self._shape, self._scale(), self.bias, self.eps)

    def _scale(self) -> Tensor:
        return self.weight


class UnbiasedLayerNorm(LayerNorm):
    has_bias = False


class OffsetLayerNorm(LayerNorm):
    def _scale(self) -> Tensor:
        return self.weight + 1  # Nemotron stores weight - 1
