"""The sizes of the fused operations' kernels, for launches and compilation ahead of time. Not tuned. No torch."""

from dataclasses import dataclass
from typing import Final

# Of a normalised row, which the registers of a program hold.
MAX_NORM_NUMBERS: Final = 2**14
# Of a head.
MAX_ROTATED_NUMBERS: Final = 2**10
# Of a program, unless a row has more.
_NUMBERS: Final = 1024
# A thread loads 16 bytes at once, of a type of 2 bytes.
_NUMBERS_OF_THREAD: Final = 8
_MAX_THREADS: Final = 512


@dataclass(frozen=True)
class ElementTile:
    """The numbers of a program: `rows` times a power of two that holds a row."""

    rows: int
    numbers: int
    num_warps: int

    @classmethod
    def of(cls, row: int, numbers: int, warp_size: int) -> "ElementTile":
        """Return the tile for rows of this length, and about `numbers` in all."""
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
