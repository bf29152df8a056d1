"""The kernels for LoRA adapters, in the sizes of a known model, for tools/compile_kernels.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvasir.kernels.triton.adapters.adapter_tiling import expand_tile, product_constants, shrink_tile
from kvasir.kernels.triton.experts.expert_tiling import TILE_ROWS, DeviceLimits
from kvasir.kernels.triton.tiling import OPTIONS
from tools.kernel_targets import DTYPE_BYTES, Source, Target, Variant

# Rank 16 of Llama 3.1 8B: q, k and v together.
INPUTS: Final = 4096
OUTPUTS: Final = 6144
RANKS: Final = 48
_TYPES: Final = MappingProxyType(
    {
        **dict.fromkeys(("places", "blocks", "num_blocks"), "*i32"),
        **dict.fromkeys(("x_stride", "out_stride"), "i32"),
        "shrunk": "*fp32",
    }
)


@dataclass(frozen=True)
class AdapterVariant(Variant):
    # shrink or expand.
    kernel: str
    dtype: str
    # Of a block.
    rows: int

    @property
    def name(self) -> str:
        return f"adapters {self.kernel} {self.dtype} {self.rows}"

    def source(self, target: Target) -> Source:
        from kvasir.kernels.triton.adapters.adapter_gemm import expand, shrink

        shrinks = self.kernel == "shrink"
        limits = DeviceLimits(target.shared_bytes, target.warp_size)
        if shrinks:
            tile, size = shrink_tile(self.rows, RANKS, DTYPE_BYTES[self.dtype], limits), INPUTS
        else:
            tile, size = expand_tile(self.rows, RANKS, limits), OUTPUTS
        constants = product_constants(tile, size, RANKS, exact=self.dtype == "fp32", interpreted=False)
        options = {**OPTIONS, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
        return Source.of(shrink if shrinks else expand, constants, _TYPES, self.dtype, options=options)


def adapter_variants() -> Iterator[AdapterVariant]:
    for kernel in ("shrink", "expand"):
        for dtype in ("bf16", "fp16", "fp32"):
            for rows in TILE_ROWS if dtype != "fp32" else TILE_ROWS[:1]:
                yield AdapterVariant(kernel, dtype, rows)
