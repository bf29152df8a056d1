"""The sizes of the kernel for a few rows. Launches and compilation ahead of time use the same ones.

No torch and no triton. The tiles come from device_tiles.py.
"""

from typing import Final

import msgspec

MOST_ROWS: Final = 1
"""With more, torch's products take less time."""
MULTIPLE_OF: Final = 16
"""The numbers of a row are a multiple of it, so that rows of weights are aligned."""
WIDE_INPUTS: Final = 2048
"""Numbers of a row from which gates have a tile of their own."""


class RowTile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The weights that a program loads at a time."""

    outputs: int
    inputs: int
    num_warps: int
    num_stages: int
    """Tiles of weights in flight."""

    def shared_bytes(self, weights: int) -> int:
        """Return the shared memory of a program, at most, with numbers of 4 bytes. `weights`: 2 for a gate."""
        return 4 * weights * self.outputs * self.inputs * self.num_stages


class RowTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tiles of a device."""

    norm: RowTile
    """Of a product that is stored, usually of a normalised row."""
    add: RowTile
    """Of a product that is added to the residual stream."""
    gate_wide: RowTile
    """Of a gate, whose programs multiply by two weights for each output; of rows of at least WIDE_INPUTS."""
    gate: RowTile

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program, at most."""
        single, double = (self.norm, self.add), (self.gate_wide, self.gate)
        return max(*(tile.shared_bytes(1) for tile in single), *(tile.shared_bytes(2) for tile in double))


def row_tile(tiles: RowTiles, inputs: int, *, gated: bool, adds: bool) -> RowTile:
    """`tiles`: of the device."""
    if gated:
        return tiles.gate_wide if inputs >= WIDE_INPUTS else tiles.gate
    return tiles.add if adds else tiles.norm


def row_constants(
    tile: RowTile, *, normed: bool, activation: str, adds: bool, biased: bool, even: bool
) -> dict[str, object]:
    """`activation`: of a gate, "silu" or "gelu_tanh", or "". `even`: no tile reaches beyond the inputs."""
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
