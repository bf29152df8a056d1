"""The sizes of the experts' kernels. Not tuned. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

TILE_ROWS: Final = (16, 64, 128)
MAX_EXPERTS: Final = 1023  # of a rank, with one of 1,024 bins for other ranks
ACTIVATIONS: Final = ("silu", "gelu", "gelu_pytorch_tanh", "relu")  # names of layers/activation.py
CLAMPED: Final = "clamped"  # ClampedSwiGLU
BLOCK_NUMBERS: Final = 4  # the last number is padding, for alignment
SUM_COLUMNS: Final = 1024
# Products are rounded before they are added, as in plain torch.
SUM_OPTIONS: Final[Mapping[str, object]] = MappingProxyType({"enable_fp_fusion": False})
_MAX_STAGES: Final = 4


@dataclass(frozen=True)
class ExpertShape:
    experts: int
    size: int
    inner: int  # this rank's part


@dataclass(frozen=True)
class Gate:
    activation: str
    alpha: float = 0.0  # of ClampedSwiGLU
    limit: float = 0.0


@dataclass(frozen=True)
class DeviceLimits:
    shared_bytes: int
    warp_size: int


@dataclass(frozen=True)
class ProductTile:
    rows: int
    columns: int  # of the output
    depth: int  # equal for all tiles of a dtype, so that they add in one order
    num_warps: int
    num_stages: int  # tiles of rows and weights in flight


def tile_rows(num_rows: int, experts: int, dtype_bytes: int) -> int:
    """Return the rows of a block. `experts`: of the whole layer."""
    if dtype_bytes > 2:  # products of float32 are computed without tensor cores
        return TILE_ROWS[0]
    return next((rows for rows in TILE_ROWS if rows * experts >= num_rows), TILE_ROWS[-1])


def product_tile(rows: int, dtype_bytes: int, limits: DeviceLimits, *, gated: bool) -> ProductTile:
    depth = 64 if dtype_bytes <= 2 else 32

    def stages(weight_rows: int) -> int:
        return limits.shared_bytes // ((rows + weight_rows) * depth * dtype_bytes)

    weight_rows = 64
    if rows == TILE_ROWS[-1]:  # a wide tile loads rows less often
        weight_rows = 256 if stages(256) >= _MAX_STAGES else 128
    num_stages = max(2, min(_MAX_STAGES, stages(weight_rows)))
    num_warps = 8 if rows * weight_rows >= 128 * 128 and limits.warp_size == 32 else 4
    return ProductTile(rows, weight_rows // 2 if gated else weight_rows, depth, num_warps, num_stages)


def most_blocks(num_rows: int, experts: int, rows: int) -> int:
    # At worst, each expert has a block of one row, and the other rows fill blocks.
    used = min(num_rows, experts)
    return used + (num_rows - used) // rows


def listed_at_a_time(num_rows: int) -> int:
    return 256 if num_rows <= 1024 else 4096


def list_constants(experts: int, rows: int, num_rows: int) -> dict[str, object]:
    return {
        "EXPERTS": experts,
        "BINS": 1 << experts.bit_length(),  # one more than the experts, at least
        "ROWS": rows,
        "BLOCK_NUMBERS": BLOCK_NUMBERS,
        "CHUNK": listed_at_a_time(num_rows),
    }


def gate_up_constants(
    shape: ExpertShape, tile: ProductTile, top_k: int, gate: Gate, *, biased: bool, exact: bool, interpreted: bool
) -> dict[str, object]:
    # `exact`: products of float32 are not rounded to TF32
    return {
        "SIZE": shape.size,
        "INNER": shape.inner,
        "TOP_K": top_k,
        "ACTIVATION": gate.activation,
        "ALPHA": gate.alpha,
        "LIMIT": gate.limit,
        "BIASED": biased,
        **_tile_constants(tile, exact=exact, interpreted=interpreted),
    }


def down_constants(
    shape: ExpertShape, tile: ProductTile, *, biased: bool, exact: bool, interpreted: bool
) -> dict[str, object]:
    return {
        "SIZE": shape.size,
        "INNER": shape.inner,
        "BIASED": biased,
        **_tile_constants(tile, exact=exact, interpreted=interpreted),
    }


def sum_constants(size: int, top_k: int) -> dict[str, object]:
    return {"SIZE": size, "TOP_K": top_k, "COLUMNS": SUM_COLUMNS}


def _tile_constants(tile: ProductTile, *, exact: bool, interpreted: bool) -> dict[str, object]:
    return {
        "BLOCK_NUMBERS": BLOCK_NUMBERS,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "EXACT": exact,
        "INTERPRETED": interpreted,
    }
