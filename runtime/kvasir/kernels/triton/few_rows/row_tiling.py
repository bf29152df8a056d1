"""The sizes of the kernel for a few rows. No torch and no triton."""

from typing import Final

import msgspec

# With more, torch's products take less time.
MAX_ROWS: Final = 1
# Of the numbers of a row, so that rows of weights are aligned.
MULTIPLE_OF: Final = 16
# Rows from this length on have a tile of their own for gates.
WIDE_INPUTS: Final = 2048


class RowTile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The weights that a program loads at a time."""

    outputs: int
    inputs: int
    num_warps: int
    # Tiles in flight.
    num_stages: int

    def shared_bytes(self, weights: int) -> int:
        """Return the most shared memory of a program, with numbers of 4 bytes. `weights`: 2 for a gate."""
        return 4 * weights * self.outputs * self.inputs * self.num_stages


class RowTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # For a product that is stored, usually of a normalised row.
    norm: RowTile
    # For a product that is added to the residual stream.
    add: RowTile
    # For a gate and rows of at least WIDE_INPUTS. Its programs multiply by two weights for each output.
    gate_wide: RowTile
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
    """`activation` is "silu", "gelu_tanh" or "". `even`: tiles end with the inputs."""
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
