"""Launches the kernels of the fused operations, after checks of shapes and dtypes."""

import torch
import triton
from torch import Tensor

from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton.device_support import warp_size
from kvasir.kernels.triton.fused_tiling import (
    MAX_NORM_NUMBERS,
    MAX_ROTATED_NUMBERS,
    gate_constants,
    gate_tile,
    norm_constants,
    norm_tile,
    rotate_constants,
    rotate_tile,
)
from kvasir.kernels.triton.gated_activation import gated_activation
from kvasir.kernels.triton.rms_norm import rms_norm
from kvasir.kernels.triton.rotary import rotate
from kvasir.kernels.triton.tiling import OPTIONS


class TritonOperations:
    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._warp_size = warp_size(device)

    def takes_norm(self, size: int) -> bool:
        return size <= MAX_NORM_NUMBERS

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        by_head = x if x.dim() == 3 and _side_by_side(x) else x.reshape(-1, 1, x.shape[-1])
        if by_head.stride(2) != 1:
            by_head = by_head.contiguous()
        out = torch.empty(by_head.shape, dtype=x.dtype, device=x.device)
        self._normalise(out, by_head, None, weight, eps, shift)
        return out.view(x.shape)

    def rms_norm_(self, x: Tensor, weight: Tensor, eps: float, shift: float) -> None:
        self._normalise(x, x, None, weight, eps, shift)

    def add_rms_norm_(self, x: Tensor, added: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        _require(x.dim() == 2 and x.stride(1) == 1, "x", x)
        _require(added.shape == x.shape and added.stride(1) == 1, "added", added)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self._normalise(out[:, None], x[:, None], added, weight, eps, shift)
        return out

    def takes_gate(self, size: int) -> bool:
        return True

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        self._check(x)
        _require(x.dim() == 2 and x.shape[1] % 2 == 0 and x.stride(1) == 1, "x", x)
        tokens, size = x.shape[0], x.shape[1] // 2
        out = x.new_empty(tokens, size)
        tile = gate_tile(self._warp_size)
        gated_activation[tokens, triton.cdiv(size, tile.numbers)](
            out,
            x,
            x.stride(0),
            **gate_constants(tile, size, gelu=activation is Activation.GELU_TANH),
            num_warps=tile.num_warps,
            **OPTIONS,
        )
        return out

    def takes_rotation(self, dim: int) -> bool:
        return dim <= MAX_ROTATED_NUMBERS

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        self._check(x, cos, sin)
        _require(x.dim() == 3 and _side_by_side(x), "x", x)
        tokens, heads, head_dim = x.shape
        dim = cos.shape[-1]
        _require(dim % 2 == 0 and dim <= head_dim, "x", x)
        for angles in (cos, sin):
            _require(angles.shape == (tokens, 1, dim) and angles.is_contiguous(), "cos or sin", angles)
        tile = rotate_tile(dim, self._warp_size)
        rotate[tokens, triton.cdiv(heads, tile.rows)](
            x,
            cos,
            sin,
            x.stride(0),
            **rotate_constants(tile, heads, head_dim, dim),
            num_warps=tile.num_warps,
            **OPTIONS,
        )

    def _normalise(
        self, out: Tensor, x: Tensor, added: Tensor | None, weight: Tensor, eps: float, shift: float
    ) -> None:  # out, x [T, heads, size], added [T, size]
        self._check(x, weight, x if added is None else added)
        _require(x.dim() == 3 and _side_by_side(x), "x", x)
        tokens, heads, size = x.shape
        _require(weight.shape == (size,) and weight.is_contiguous() and self.takes_norm(size), "weight", weight)
        tile = norm_tile(size, self._warp_size)
        rms_norm[(triton.cdiv(tokens * heads, tile.rows),)](
            out,
            x,
            x if added is None else added,
            weight,
            tokens * heads,
            eps,
            shift,
            out.stride(0),
            x.stride(0),
            0 if added is None else added.stride(0),
            **norm_constants(tile, heads, size, adds=added is not None),
            num_warps=tile.num_warps,
            **OPTIONS,
        )

    def _check(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            if tensor.dtype != self._dtype:
                raise TypeError(f"the kernel takes {self._dtype}, not {tensor.dtype}")


def _side_by_side(x: Tensor) -> bool:
    # the heads of a token are contiguous
    _, heads, size = x.shape
    return x.stride(2) == 1 and (heads == 1 or x.stride(1) == size)


def _require(fits: bool, name: str, tensor: Tensor) -> None:
    if not fits:
        raise ValueError(f"the kernel does not take {name} of shape {list(tensor.shape)} and these strides here")
