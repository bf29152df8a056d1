"""The sizes of the kernel for a few rows. Launches and compilation ahead of time use the same ones.

No torch and no triton.
"""

from dataclasses import dataclass
from typing import Final

MOST_ROWS: Final = 1
"""With more, torch's products take less time."""
MULTIPLE_OF: Final = 16
"""The numbers of a row are a multiple of it, so that rows of weights are aligned."""


@dataclass(frozen=True)
class RowTile:
    """The weights that a program loads at a time."""

    outputs: int
    inputs: int
    num_warps: int
    num_stages: int
    """Tiles of weights in flight."""


def row_tile(*, gated: bool) -> RowTile:
    """`gated`: a program multiplies by two weights for each output."""
    return RowTile(outputs=4, inputs=512, num_warps=4, num_stages=1)


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
