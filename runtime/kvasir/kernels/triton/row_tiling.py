"""The sizes of the kernel for a few rows. Imports no torch or triton."""

from typing import Final

import msgspec

MAX_ROWS: Final = 1  # torch's products are faster for more
MULTIPLE_OF: Final = 16  # of a row's length, for alignment
WIDE_INPUTS: Final = 2048


class RowTile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int  # tiles in flight

    def shared_bytes(self, weights: int) -> int:
        # an upper bound, for float32. `weights`: 2 for a gate
        return 4 * weights * self.outputs * self.inputs * self.num_stages


class RowTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    norm: RowTile  # the product is stored
    add: RowTile  # the product is added to the residual stream
    gate_wide: RowTile  # rows of at least WIDE_INPUTS
    gate: RowTile

    @property
    def shared_bytes(self) -> int:
        single, double = (self.norm, self.add), (self.gate_wide, self.gate)
        return max(*(tile.shared_bytes(1) for tile in single), *(tile.shared_bytes(2) for tile in double))


def row_tile(tiles: RowTiles, inputs: int, *, gated: bool, adds: bool) -> RowTile:
    if gated:
        return tiles.gate_wide if inputs >= WIDE_INPUTS else tiles.gate
    return tiles.add if adds else tiles.norm


def row_constants(
    tile: RowTile, *, normed: bool, activation: str, adds: bool, biased: bool, even: bool
) -> dict[str, object]:
    # `activation` is "silu", "gelu_tanh" or ""; `even`: whole tiles
    return {
        "OUTPUTS": tile.outputs,
        "INPUTS": tile.inputs,
        "NORMED": normed,
        "GATED": activation != "",
        "GELU": activation == "gelu_tanh",
        "ADDS": adds,
        "BIASED": biased,
        "EVEN": even,
        "STAGES": tile.num_stages,
    }
