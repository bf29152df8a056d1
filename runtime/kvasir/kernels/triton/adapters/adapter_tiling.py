"""The sizes of the adapters' kernels. Not tuned. Imports no torch."""

from typing import Final

from kvasir.kernels.triton.experts.expert_tiling import (
    BLOCK_NUMBERS,
    TILE_ROWS,
    DeviceLimits,
    ProductTile,
    product_tile,
)

# tl.dot needs 16.
_LEAST: Final = 16
_EXPAND_DEPTH: Final = 64
_COLUMNS: Final = 64


def shrink_tile(rows: int, ranks: int, dtype_bytes: int, limits: DeviceLimits) -> ProductTile:
    """Return the tile of x A: few columns, and all inputs in depth."""
    depth = product_tile(rows, dtype_bytes, limits, gated=False).depth
    return _tile(rows, min(_COLUMNS, _power_of_2(ranks)), depth, limits)


def expand_tile(rows: int, ranks: int, limits: DeviceLimits) -> ProductTile:
    """Return the tile of (x A) B: all ranks in depth."""
    return _tile(rows, _COLUMNS, min(_EXPAND_DEPTH, _power_of_2(ranks)), limits)


def _tile(rows: int, columns: int, depth: int, limits: DeviceLimits) -> ProductTile:
    # With 4 warps the largest tile would spill registers.
    num_warps = 8 if rows == TILE_ROWS[-1] and limits.warp_size == 32 else 4
    return ProductTile(rows, columns, depth, num_warps, num_stages=2)


def product_constants(
    tile: ProductTile, size: int, ranks: int, *, exact: bool, interpreted: bool
) -> dict[str, object]:
    return {
        "SIZE": size,
        "RANKS": ranks,
        "BLOCK_NUMBERS": BLOCK_NUMBERS,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "EXACT": exact,
        "INTERPRETED": interpreted,
    }


def _power_of_2(ranks: int) -> int:
    """
    >>> [_power_of_2(ranks) for ranks in (4, 16, 48)]
    [16, 16, 64]
    """
    return max(_LEAST, 1 << (ranks - 1).bit_length())
