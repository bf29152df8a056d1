"""The sizes of the attention kernels. Imports no torch or triton."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

import msgspec

from kvasir.kernels.triton.work_list import ITEM_SIZE, MERGE_SIZE

MAX_NUMBERS: Final = 256  # of a head
MULTIPLE_OF: Final = 16  # of a head's size, for alignment and products
MAX_GROUP: Final = 64  # query heads of one KV head
MIN_ROWS: Final = 16  # of a matrix product in Triton
WRITE_TOKENS: Final = 16  # of a write program
MERGED_ROWS: Final = 8  # of a merge program; divides each tile's rows
# The largest heads and dtypes for which tiles are measured.
_USUAL_DIM: Final = 128
_USUAL_BYTES: Final = 2
# Explicit, because the default differs between versions of Triton.
OPTIONS: Final[Mapping[str, object]] = MappingProxyType({"enable_fp_fusion": True})


@dataclass(frozen=True)
class PagedShape:
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def padded_dim(self) -> int:
        return _power_of_two(self.head_dim)


class StepKind(Enum):
    FEW_DECODES = "few"  # contexts are split to occupy the device
    DECODES = "decode"
    PREFILL = "prefill"  # a request has several new tokens


def decodes_kind(requests: int, kv_heads: int, programs: int) -> StepKind:
    # `programs` occupy the device. The padded size of a CUDA graph decides its tile.
    return StepKind.FEW_DECODES if 4 * requests * kv_heads <= programs else StepKind.DECODES


class AttentionTile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    rows: int  # query tokens times the query heads of one KV head
    keys: int  # independent of the block size
    num_warps: int
    num_stages: int  # tiles of K and V in flight

    def tokens(self, group: int) -> int:
        return self.rows // group

    @property
    def shared_bytes(self) -> int:
        # upper bound for usual heads: Q, tiles of K and V
        return (self.rows + 2 * self.num_stages * self.keys) * _USUAL_DIM * _USUAL_BYTES


class DecodeTile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    keys: int
    num_warps: int
    num_stages: int

    def of_rows(self, rows: int) -> AttentionTile:
        return AttentionTile(rows, self.keys, self.num_warps, self.num_stages)


class AttentionTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    few: DecodeTile
    decode: DecodeTile
    prefill: AttentionTile

    @property
    def shared_bytes(self) -> int:
        tiles = self.few.of_rows(MIN_ROWS), self.decode.of_rows(MIN_ROWS), self.prefill
        return max(tile.shared_bytes for tile in tiles)


def has_usual_heads(shape: PagedShape, dtype_bytes: int, warp_size: int) -> bool:
    return shape.head_dim <= _USUAL_DIM and dtype_bytes <= _USUAL_BYTES and warp_size == 32


# Not tuned. Conversion from fp8 takes registers, so larger tiles do not fit.
FP8_TILES: Final = AttentionTiles(
    few=DecodeTile(64, 4, 2), decode=DecodeTile(64, 4, 2), prefill=AttentionTile(128, 64, 8, 2)
)


def attention_tile(
    shape: PagedShape, dtype_bytes: int, kind: StepKind, tiles: AttentionTiles, *, warp_size: int
) -> AttentionTile:
    """Return one of `tiles` for usual heads, or compute a tile."""
    rows = max(MIN_ROWS, _power_of_two(shape.group))
    if has_usual_heads(shape, dtype_bytes, warp_size):
        if kind is StepKind.PREFILL:
            return msgspec.structs.replace(tiles.prefill, rows=max(rows, tiles.prefill.rows))
        if rows == MIN_ROWS:  # one warp has no registers for more
            return (tiles.few if kind is StepKind.FEW_DECODES else tiles.decode).of_rows(rows)
    if kind is StepKind.PREFILL and dtype_bytes <= 2:
        rows = max(rows, 128 if shape.padded_dim <= 128 else 64)
    row_bytes = shape.padded_dim * dtype_bytes
    keys = 64 if row_bytes <= 256 and dtype_bytes <= 2 else 32 if row_bytes <= 512 else 16
    # 128 threads lack registers for scores [rows, keys] and sums [rows, padded_dim].
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
    # `dim`: numbers of a head that are rotated
    halves = {"HALF": dim // 2, "PADDED_HALF": _power_of_two(dim // 2)}
    return {"HEADS": shape.heads, **halves, **write_constants(shape)}


def attend_constants(
    shape: PagedShape,
    tile: AttentionTile,
    *,
    windowed: bool,
    capped: bool,
    sinks: bool = False,
    exact: bool,
    interpreted: bool,
) -> dict[str, object]:
    # `exact`: products of float32 are not rounded to TF32
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
        "SINKS": sinks,
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
