"""The sizes of the fused operations. Not tuned. Imports no torch."""

from dataclasses import dataclass
from typing import Final

MAX_NORM_NUMBERS: Final = 2**14  # limited by registers
MAX_ROTATED_NUMBERS: Final = 2**10  # of a head
_NUMBERS: Final = 1024  # of a program, at least one row
_NUMBERS_OF_THREAD: Final = 8  # 16 bytes of a 2-byte dtype
_MAX_THREADS: Final = 512


@dataclass(frozen=True)
class ElementTile:
    rows: int
    numbers: int  # of a row, padded to a power of two
    num_warps: int

    @classmethod
    def of(cls, row: int, numbers: int, warp_size: int) -> "ElementTile":
        # `numbers`: of the whole tile, about
        padded = 1 << (row - 1).bit_length()
        rows = max(1, numbers // padded)
        threads = min(_MAX_THREADS, rows * padded // _NUMBERS_OF_THREAD)
        return cls(rows, padded, max(1, threads // warp_size))


def norm_tile(size: int, warp_size: int) -> ElementTile:
    return ElementTile.of(size, _NUMBERS, warp_size)


def norm_constants(tile: ElementTile, heads: int, size: int, *, adds: bool) -> dict[str, object]:
    return {"HEADS": heads, "SIZE": size, "PADDED_SIZE": tile.numbers, "ROWS": tile.rows, "ADDS": adds}


def gate_tile(warp_size: int) -> ElementTile:
    return ElementTile.of(_NUMBERS, _NUMBERS, warp_size)


def gate_constants(tile: ElementTile, size: int, *, gelu: bool) -> dict[str, object]:
    return {"SIZE": size, "NUMBERS": tile.numbers, "GELU": gelu}


def rotate_tile(dim: int, warp_size: int) -> ElementTile:  # for the first halves of heads
    return ElementTile.of(dim // 2, _NUMBERS // 2, warp_size)


def rotate_constants(tile: ElementTile, heads: int, head_dim: int, dim: int) -> dict[str, object]:
    return {
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "HALF": dim // 2,
        "PADDED_HALF": tile.numbers,
        "ROWS": tile.rows,
    }
