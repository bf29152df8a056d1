"""Launches the experts' kernels. The host reads nothing from the device, for CUDA graphs."""

from dataclasses import dataclass
from typing import Final

import torch
import triton
from torch import Tensor

from kvasir.kernels.triton.experts.expert_blocks import list_blocks
from kvasir.kernels.triton.experts.expert_gemm import multiply_down, multiply_gate_up
from kvasir.kernels.triton.experts.expert_sum import add_weighted
from kvasir.kernels.triton.experts.expert_tiling import (
    BLOCK_NUMBERS,
    SUM_COLUMNS,
    SUM_OPTIONS,
    DeviceLimits,
    ExpertShape,
    Gate,
    down_constants,
    gate_up_constants,
    list_constants,
    most_blocks,
    product_tile,
    sum_constants,
    tile_rows,
)
from kvasir.kernels.triton.tiling import OPTIONS

# Triton's interpreter runs the kernels on a CPU.
INTERPRETED: Final = bool(triton.knobs.runtime.interpret)
_INTERPRETER: Final = DeviceLimits(shared_bytes=64 * 1024, warp_size=32)


Biases = tuple[Tensor | None, Tensor | None]  # of gate_up [experts, 2 * inner] and down [experts, size]
NO_BIASES: Final[Biases] = (None, None)


@dataclass(frozen=True)
class Blocks:
    """The rows of a step by expert (expert_blocks.py). Numbers after the last row or block are undefined."""

    places: Tensor  # [T * top_k] int32
    table: Tensor  # [most blocks, 4] int32
    count: Tensor  # [1] int32


def listed_blocks(chosen: Tensor, own: range, rows: int) -> Blocks:
    # chosen: [T, top_k] int64, not empty
    num_rows, experts = chosen.numel(), len(own)
    blocks = Blocks(
        chosen.new_empty(num_rows, dtype=torch.int32),
        chosen.new_empty(most_blocks(num_rows, experts, rows), BLOCK_NUMBERS, dtype=torch.int32),
        chosen.new_empty(1, dtype=torch.int32),
    )
    list_blocks[(experts,)](
        blocks.places,
        blocks.table,
        blocks.count,
        chosen,
        num_rows,
        own.start,
        **list_constants(experts, rows, num_rows),
        **OPTIONS,
    )
    return blocks


class ExpertKernels:
    """down(activation(gate(x)) * up(x)) of the experts `own` of `count`. Raises ValueError for other shapes."""

    def __init__(self, shape: ExpertShape, own: range, count: int, gate: Gate, device: torch.device) -> None:
        self._shape, self._own, self._count, self._gate = shape, own, count, gate
        self._limits = device_limits(device)

    def __call__(
        self, x: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, biases: Biases = NO_BIASES
    ) -> Tensor:
        # x [T, size], chosen [T, top_k] int64 → [T, top_k, size]; zeros for experts of other ranks
        self._check(x, chosen, gate_up, down, biases)
        tokens, top_k = chosen.shape
        new = torch.empty if len(self._own) == self._count else torch.zeros
        out = new(tokens, top_k, self._shape.size, dtype=x.dtype, device=x.device)
        if tokens:
            self._compute(out, x, chosen, gate_up, down, biases)
        return out

    def weighted_sum(self, parts: Tensor, weights: Tensor) -> Tensor:
        # [T, top_k, size], [T, top_k] float32 → [T, size] float32
        tokens, top_k, size = parts.shape
        if weights.shape != (tokens, top_k) or weights.dtype != torch.float32:
            raise ValueError(f"the kernel does not take weights of shape {list(weights.shape)}, {weights.dtype}")
        total = torch.empty(tokens, size, dtype=torch.float32, device=parts.device)
        if tokens:
            add_weighted[tokens, triton.cdiv(size, SUM_COLUMNS)](
                total, parts.contiguous(), weights.contiguous(), **sum_constants(size, top_k), **SUM_OPTIONS
            )
        return total

    def _compute(
        self, out: Tensor, x: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, biases: Biases
    ) -> None:
        shape, top_k, dtype_bytes = self._shape, chosen.shape[1], x.dtype.itemsize
        rows = tile_rows(chosen.numel(), self._count, dtype_bytes)
        blocks = listed_blocks(chosen, self._own, rows)
        exact = x.dtype == torch.float32
        tile = product_tile(rows, dtype_bytes, self._limits, gated=True)
        inner = x.new_empty(chosen.numel(), shape.inner)
        multiply_gate_up[len(blocks.table), triton.cdiv(shape.inner, tile.columns)](
            inner,
            x,
            gate_up,
            x if biases[0] is None else biases[0],
            blocks.places,
            blocks.table,
            blocks.count,
            **gate_up_constants(
                shape,
                tile,
                top_k,
                self._gate,
                biased=biases[0] is not None,
                exact=exact,
                interpreted=INTERPRETED,
            ),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **OPTIONS,
        )
        tile = product_tile(rows, dtype_bytes, self._limits, gated=False)
        multiply_down[len(blocks.table), triton.cdiv(shape.size, tile.columns)](
            out,
            inner,
            down,
            x if biases[1] is None else biases[1],
            blocks.places,
            blocks.table,
            blocks.count,
            **down_constants(shape, tile, biased=biases[1] is not None, exact=exact, interpreted=INTERPRETED),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **OPTIONS,
        )

    def _check(self, x: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, biases: Biases) -> None:
        shape = self._shape
        expected = {
            "x": (x, (len(x), shape.size), x.dtype),
            "chosen": (chosen, (len(x), chosen.shape[-1]), torch.int64),
            "gate_up": (gate_up, (shape.experts, 2 * shape.inner, shape.size), x.dtype),
            "down": (down, (shape.experts, shape.size, shape.inner), x.dtype),
        }
        for name, bias, outputs in zip(("gate_up", "down"), biases, (2 * shape.inner, shape.size), strict=True):
            if bias is not None:
                expected[f"the bias of {name}"] = (bias, (shape.experts, outputs), x.dtype)
        for name, (tensor, size, dtype) in expected.items():
            if tensor.shape != size or tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(
                    f"the kernel does not take {name} of shape {list(tensor.shape)}, {tensor.dtype} and this stride"
                )


def device_limits(device: torch.device) -> DeviceLimits:
    if device.type != "cuda":
        return _INTERPRETER
    index = torch.cuda.current_device() if device.index is None else device.index
    shared_bytes = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return DeviceLimits(shared_bytes, torch.cuda.get_device_properties(index).warp_size)
