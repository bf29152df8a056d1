"""Launches the kernels for quantised weights."""

from typing import Final

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from kvasir.kernels.nibbles import unpack
from kvasir.kernels.triton.quantised.weight_kernels import multiply_few_rows, multiply_one_row, write_floats
from kvasir.kernels.triton.quantised.weight_tiling import (
    MAX_COPY_BYTES,
    MAX_TILED_ROWS,
    WeightForm,
    dequantise_tile,
    product_constants,
    row_weight_tile,
    tiled_weight_tile,
    weight_constants,
)
from kvasir.kernels.triton.tiling import OPTIONS

# Triton's interpreter runs the kernels on a CPU.
INTERPRETED: Final = bool(triton.knobs.runtime.interpret)


def pack_halves(numbers: Tensor, half: int) -> Tensor:
    """Return bytes [outputs, inputs / 2] with pairs of inputs that are `half` apart, from pairs of neighbours."""
    # One load then has neighbouring inputs in its low halves, and neighbouring ones in its high halves.
    low, high = unpack(numbers, 4).unflatten(1, (-1, 2, half)).unbind(2)
    return (low | (high << 4)).flatten(1).contiguous()  # type: ignore[no-any-return]


class KernelProduct:
    """x Wᵀ with a quantised weight. A row's sums have another order for one, for a few, and for many rows.

    numbers: int8 or float8_e4m3fn [outputs, inputs], or uint8 [outputs, inputs / 2]; scales: float32
    [outputs, groups]; zeros: uint8 or float32, like scales; table: float32 [16].
    """

    def __init__(
        self, form: WeightForm, numbers: Tensor, scales: Tensor, zeros: Tensor | None, table: Tensor | None
    ) -> None:
        self._form, self._outputs = form, len(numbers)
        if numbers.dtype == torch.uint8:
            numbers = pack_halves(numbers, form.half)
        elif numbers.dtype == torch.float8_e4m3fn:
            numbers = numbers.view(torch.uint8)  # devices before sm_89 have no such type
        scales = scales.contiguous()
        # The kernels do not read the tensors that stand for missing ones.
        zeros = scales if zeros is None else zeros.contiguous()
        table = scales if table is None else table.contiguous()
        self._tensors = (numbers.contiguous(), scales, zeros, table)

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self._form.inputs:
            raise ValueError(f"the kernel does not multiply {list(x.shape)} by rows of {self._form.inputs} here")
        x, rows = x.contiguous(), x.shape[0]
        out = torch.empty(rows, self._outputs, dtype=x.dtype, device=x.device)
        if rows == 1:
            self._multiply_one(out, x)
        elif rows > MAX_TILED_ROWS and self._outputs * self._form.inputs * x.itemsize <= MAX_COPY_BYTES:
            return F.linear(x, self._floats(x))
        elif rows:
            self._multiply_few(out, x)
        return out

    def _multiply_one(self, out: Tensor, x: Tensor) -> None:
        tile = row_weight_tile()
        multiply_one_row[(triton.cdiv(self._outputs, tile.outputs),)](
            out,
            x,
            *self._tensors,
            self._outputs,
            **weight_constants(self._form),
            OUTPUTS=tile.outputs,
            STAGES=tile.num_stages,
            num_warps=tile.num_warps,
            **OPTIONS,
        )

    def _multiply_few(self, out: Tensor, x: Tensor) -> None:
        rows, tile = len(x), tiled_weight_tile(len(x), x.itemsize)
        exact = x.dtype == torch.float32
        multiply_few_rows[triton.cdiv(self._outputs, tile.outputs), triton.cdiv(rows, tile.rows)](
            out,
            x,
            *self._tensors,
            rows,
            self._outputs,
            **product_constants(self._form, tile, exact=exact, interpreted=INTERPRETED),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **OPTIONS,
        )

    def _floats(self, x: Tensor) -> Tensor:  # [outputs, inputs], in the dtype of x
        form, tile = self._form, dequantise_tile()
        out = torch.empty(self._outputs, form.inputs, dtype=x.dtype, device=x.device)
        write_floats[triton.cdiv(self._outputs, tile.outputs), form.inputs // (2 * form.half)](
            out,
            *self._tensors,
            self._outputs,
            **weight_constants(form),
            OUTPUTS=tile.outputs,
            num_warps=tile.num_warps,
            **OPTIONS,
        )
        return out
