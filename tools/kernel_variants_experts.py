"""The kernels for a mixture of experts, in the sizes of a known model, for tools/compile_kernels.py."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kvasir.kernels.triton.experts.expert_tiling import (
    CLAMPED,
    SUM_OPTIONS,
    TILE_ROWS,
    DeviceLimits,
    ExpertShape,
    Gate,
    down_constants,
    gate_up_constants,
    list_constants,
    product_tile,
    sum_constants,
)
from kvasir.kernels.triton.tiling import OPTIONS
from tools.kernel_targets import DTYPE_BYTES, Source, Target, Variant

# Qwen3-30B-A3B.
SHAPE: Final = ExpertShape(experts=128, size=2048, inner=768)
TOP_K: Final = 8
_TYPES: Final = MappingProxyType(
    {
        **dict.fromkeys(("places", "blocks", "num_blocks"), "*i32"),
        **dict.fromkeys(("total", "weights"), "*fp32"),
        "chosen": "*i64",
        **dict.fromkeys(("num_rows", "first_expert"), "i32"),
    }
)
# A kernel, its constants and its options.
_Launch = tuple[Any, Mapping[str, object], Mapping[str, object]]


@dataclass(frozen=True)
class ExpertVariant(Variant):
    # list, gate_up, down or sum.
    kernel: str
    # "" for a kernel that reads no numbers of the model.
    dtype: str
    # Of a block; of a step for `list`; 0 for `sum`.
    rows: int
    # The experts of gpt-oss: biases and another activation.
    biased: bool = False

    @property
    def name(self) -> str:
        parts = ("experts", self.kernel, self.dtype, str(self.rows or ""), "bias" if self.biased else "")
        return " ".join(part for part in parts if part)

    def source(self, target: Target) -> Source:
        kernel, constants, options = self._launch(DeviceLimits(target.shared_bytes, target.warp_size))
        return Source.of(kernel, constants, _TYPES, self.dtype, options=options)

    def _launch(self, limits: DeviceLimits) -> _Launch:
        from kvasir.kernels.triton.experts.expert_blocks import list_blocks
        from kvasir.kernels.triton.experts.expert_gemm import multiply_down, multiply_gate_up
        from kvasir.kernels.triton.experts.expert_sum import add_weighted

        if self.kernel == "list":
            return list_blocks, list_constants(SHAPE.experts, TILE_ROWS[-1], self.rows), OPTIONS
        if self.kernel == "sum":
            return add_weighted, sum_constants(SHAPE.size, TOP_K), SUM_OPTIONS
        exact, gated = self.dtype == "fp32", self.kernel == "gate_up"
        tile = product_tile(self.rows, DTYPE_BYTES[self.dtype], limits, gated=gated)
        options = {**OPTIONS, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
        if gated:
            gate = Gate(CLAMPED, 1.702, 7.0) if self.biased else Gate("silu")
            constants = gate_up_constants(
                SHAPE, tile, TOP_K, gate, biased=self.biased, exact=exact, interpreted=False
            )
            return multiply_gate_up, constants, options
        constants = down_constants(SHAPE, tile, biased=self.biased, exact=exact, interpreted=False)
        return multiply_down, constants, options


def expert_variants() -> Iterator[ExpertVariant]:
    for num_rows in (1024, 65536):
        yield ExpertVariant("list", "", num_rows)
    for dtype in ("bf16", "fp16", "fp32"):
        for rows in TILE_ROWS if dtype != "fp32" else TILE_ROWS[:1]:
            yield ExpertVariant("gate_up", dtype, rows)
            yield ExpertVariant("down", dtype, rows)
        yield ExpertVariant("sum", dtype, 0)
    for kernel in ("gate_up", "down"):
        yield ExpertVariant(kernel, "bf16", TILE_ROWS[-1], biased=True)
