"""The sizes of the kernels. Launches and compilation ahead of time use the same ones, so that a table of the
compiled kernels describes the ones that run.

No torch and no triton. The sizes are not tuned: no device has measured them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvasir.kernels.triton.work_list import ITEM_SIZE, MERGE_SIZE

MOST_NUMBERS: Final = 256
"""Of an attention head."""
MULTIPLE_OF: Final = 16
"""The numbers of a head are a multiple of it: rows of the cache are aligned to 16 bytes, and products need it."""
MOST_GROUP: Final = 64
"""Query heads of one KV head."""
MIN_ROWS: Final = 16
"""Of a matrix product in Triton."""
WRITE_TOKENS: Final = 16
"""Tokens that a program of the write kernel copies."""
MERGED_ROWS: Final = 8
"""Rows of a tile that a program of the merge kernel takes: each tile has a multiple of them."""
OPTIONS: Final[Mapping[str, object]] = MappingProxyType({"enable_fp_fusion": True})
"""Of every launch. Given explicitly, because the default differs between versions of Triton."""


@dataclass(frozen=True)
class PagedShape:
    """Of the heads and of a cache [num_blocks, 2, kv_heads, block_size, head_dim]."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def padded_dim(self) -> int:
        """The power of two that holds a head."""
        return _power_of_two(self.head_dim)


@dataclass(frozen=True)
class AttentionTile:
    """The work of a program at a time."""

    rows: int
    """Query tokens times the query heads of one KV head."""
    keys: int
    """Unrelated to the cache's block size."""
    num_warps: int
    num_stages: int
    """Tiles of K and V in flight, on devices that copy them to shared memory ahead of time."""

    def tokens(self, group: int) -> int:
        """Return the query tokens that a program takes."""
        return self.rows // group


def attention_tile(shape: PagedShape, dtype_bytes: int, *, prefill: bool, warp_size: int) -> AttentionTile:
    """Return the tile of a step. `prefill`: a request of the step has several new tokens."""
    rows = max(MIN_ROWS, _power_of_two(shape.group))
    if prefill and dtype_bytes <= 2:
        rows = max(rows, 128 if shape.padded_dim <= 128 else 64)
    row_bytes = shape.padded_dim * dtype_bytes  # of K or V of a key
    keys = 64 if row_bytes <= 256 and dtype_bytes <= 2 else 32 if row_bytes <= 512 else 16
    # The scores [rows, keys] and sums [rows, padded_dim] do not fit into the registers of 128 threads.
    num_warps = 8 if rows * max(keys, shape.padded_dim) >= 64 * 128 and warp_size == 32 else 4
    return AttentionTile(rows, keys, num_warps, num_stages=2)


def write_constants(shape: PagedShape) -> dict[str, object]:
    return {
        "KV_HEADS": shape.kv_heads,
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": shape.padded_dim,
        "BLOCK_SIZE": shape.block_size,
        "TOKENS": WRITE_TOKENS,
    }


def rotated_write_constants(shape: PagedShape, dim: int) -> dict[str, object]:
    """`dim`: the numbers of a head that are rotated."""
    halves = {"HALF": dim // 2, "PADDED_HALF": _power_of_two(dim // 2)}
    return {"HEADS": shape.heads, **halves, **write_constants(shape)}


def attend_constants(
    shape: PagedShape, tile: AttentionTile, *, windowed: bool, capped: bool, exact: bool, interpreted: bool
) -> dict[str, object]:
    """`exact`: products of float32 are not rounded to TF32."""
    return {
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": shape.padded_dim,
        "BLOCK_SIZE": shape.block_size,
        "ROWS": tile.rows,
        "KEYS": tile.keys,
        "ITEM_SIZE": ITEM_SIZE,
        "WINDOWED": windowed,
        "CAPPED": capped,
        "EXACT": exact,
        "INTERPRETED": interpreted,
    }


def merge_constants(shape: PagedShape, tile: AttentionTile) -> dict[str, object]:
    return {
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "PADDED_DIM": shape.padded_dim,
        "ROWS": tile.rows,
        "MERGED_ROWS": MERGED_ROWS,
        "MERGE_SIZE": MERGE_SIZE,
    }


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
