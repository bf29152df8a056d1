"""The fused operations for tools/compile_kernels.py."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final

from kvasir.kernels.triton.fused_tiling import (
    gate_constants,
    gate_tile,
    norm_constants,
    norm_tile,
    rotate_constants,
    rotate_tile,
)
from kvasir.kernels.triton.tiling import PagedShape, rotated_write_constants

KERNELS: Final = ("norm", "gate", "rotate", "rotate_write")
TYPES: Final = MappingProxyType(
    {
        **dict.fromkeys(("rows", "out_stride", "x_stride", "added_stride", "qkv_stride"), "i32"),
        **dict.fromkeys(("eps", "shift"), "fp32"),
    }
)
DIVISIBLE: Final = ("out_stride", "x_stride", "added_stride", "qkv_stride")
_DEFAULT_WARPS: Final = 4
# 32 queries and 8 keys of a token.
_HEADS: Final = 40


def names() -> Iterator[tuple[str, str, int, str]]:
    """Yield kernel, type, size and form. The size is that of a norm, of half of a gate's row, or of a head."""
    for dtype in ("bf16", "fp16", "fp32"):
        for size in (2880, 4096, 16384):
            yield "norm", dtype, size, "add"
        for form in ("silu", "gelu"):
            yield "gate", dtype, 14336, form
        yield "rotate", dtype, 128, ""
    yield "norm", "bf16", 4096, ""
    yield "norm", "bf16", 128, "heads"
    yield "rotate", "bf16", 80, "partial"
    for dtype in ("bf16", "fp32"):
        for head_dim in (128, 256):
            yield "rotate_write", dtype, head_dim, ""
    yield "rotate_write", "bf16", 80, "partial"


def launch(kernel: str, size: int, form: str, warp_size: int) -> tuple[Any, dict[str, object], int]:
    """Return the kernel, its constants and its number of warps."""
    from kvasir.kernels.triton.gated_activation import gated_activation
    from kvasir.kernels.triton.rms_norm import rms_norm
    from kvasir.kernels.triton.rotary import rotate, rotate_and_write

    if kernel == "norm":
        tile = norm_tile(size, warp_size)
        heads = _HEADS if form == "heads" else 1
        return rms_norm, norm_constants(tile, heads, size, adds=form == "add"), tile.num_warps
    if kernel == "gate":
        tile = gate_tile(warp_size)
        return gated_activation, gate_constants(tile, size, gelu=form == "gelu"), tile.num_warps
    dim = 32 if form == "partial" else size
    if kernel == "rotate_write":
        shape = PagedShape(heads=32, kv_heads=8, head_dim=size, block_size=16)
        return rotate_and_write, rotated_write_constants(shape, dim), _DEFAULT_WARPS
    tile = rotate_tile(dim, warp_size)
    return rotate, rotate_constants(tile, _HEADS, size, dim), tile.num_warps
