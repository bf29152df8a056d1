"""The sizes of the kernels for quantised weights. Not tuned. Imports no torch or triton."""

from dataclasses import dataclass
from typing import Final

MAX_TILED_ROWS: Final = 64  # for more, a dequantised copy and torch's product are faster
MAX_COPY_BYTES: Final = 256 * 1024**2  # of a dequantised copy; larger weights are always computed by tiles
# Inputs of half a step: a byte of 4-bit numbers holds an input of each half.
HALVES: Final = (128, 64, 32)
_MAX_HALF_BYTES: Final = 256  # of x: float32 takes more registers
MIN_GROUP: Final = 16


@dataclass(frozen=True)
class WeightForm:
    kind: str  # "int8", "fp8", "int4" (with zeros), "signed4" (8 is zero) or "table4"
    inputs: int
    group: int  # inputs of a scale
    half: int

    @property
    def per_output(self) -> bool:
        return self.group == self.inputs


def half_step(inputs: int, group: int, dtype_bytes: int) -> int | None:
    """Return the inputs of half a step, or None if the kernels do not support the sizes.

    >>> half_step(4096, 128, 2), half_step(4096, 128, 4), half_step(896, 128, 2), half_step(100, 100, 2)
    (128, 64, 64, None)
    """
    if group < MIN_GROUP:
        return None
    for half in HALVES:
        fits = inputs % (2 * half) == 0 and half * dtype_bytes <= _MAX_HALF_BYTES
        if fits and (half % group == 0 or group % half == 0):
            return half
    return None


@dataclass(frozen=True)
class WeightTile:
    rows: int
    outputs: int
    num_warps: int
    num_stages: int


def row_weight_tile() -> WeightTile:
    return WeightTile(1, 16, 4, 3)


def tiled_weight_tile(rows: int, dtype_bytes: int) -> WeightTile:
    if dtype_bytes > 2:  # products of float32 are computed without tensor cores
        return WeightTile(16, 16, 4, 2)
    tile_rows = next(size for size in (16, 32, 64) if size >= min(rows, 64))
    return WeightTile(tile_rows, 32, 4, 2 if tile_rows == 64 else 3)


def dequantise_tile() -> WeightTile:
    return WeightTile(1, 32, 4, 1)


def weight_constants(form: WeightForm) -> dict[str, object]:
    return {
        "KIND": form.kind,
        "INPUTS": form.inputs,
        "GROUP": form.group,
        "HALF": form.half,
        "PER_OUTPUT": form.per_output,
    }


def product_constants(form: WeightForm, tile: WeightTile, *, exact: bool, interpreted: bool) -> dict[str, object]:
    # `exact`: products of float32 are not rounded to TF32
    return {
        **weight_constants(form),
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "EXACT": exact,
        "INTERPRETED": interpreted,
    }
