"""Writes the table of docs/design/triton-experts.md: bytes and operations of a layer of experts, by calculation.

    python -m tools.expert_estimates            # writes the table
    python -m tools.expert_estimates --check    # exits with 1 if the page has another table

The tiles are those of the launches; the tokens choose all experts equally often. Nothing is measured.
"""

import sys
from pathlib import Path
from typing import Final

from kvasir.kernels.triton.experts.expert_tiling import DeviceLimits, ProductTile, product_tile, tile_rows
from tools.attention_estimates import DTYPE_BYTES, Estimate, table_row
from tools.generated_table import GeneratedTable
from tools.kernel_variants_experts import SHAPE, TOP_K

PAGE: Final = Path(__file__).parent.parent / "docs/design/triton-experts.md"

LIMITS: Final = DeviceLimits(227 * 1024, 32)
"""Of an H100."""
CASES: Final = (1, 16, 64, 512, 2048, 8192)
"""Tokens of a step."""


def estimate(tokens: int) -> Estimate:
    """Of the two products and the sum, for a layer of the model in kernel_variants_experts.py."""
    num_rows = tokens * TOP_K
    rows = tile_rows(num_rows, SHAPE.experts, DTYPE_BYTES)
    blocks = sum(-(-count // rows) for count in _rows_of_experts(num_rows))
    used = min(num_rows, SHAPE.experts)
    gate_up = product_tile(rows, DTYPE_BYTES, LIMITS, gated=True)
    down = product_tile(rows, DTYPE_BYTES, LIMITS, gated=False)
    columns = (-(-SHAPE.inner // gate_up.columns), -(-SHAPE.size // down.columns))
    results = tokens * SHAPE.size * 4
    loaded = _loaded(blocks, gate_up, columns[0], SHAPE.size, num_rows, matrices=2)
    loaded += _loaded(blocks, down, columns[1], SHAPE.inner, num_rows, matrices=1)
    between = 2 * num_rows * SHAPE.size + num_rows * SHAPE.inner  # parts are written and read, inner is written
    return Estimate(
        programs=blocks * sum(columns),
        needed_bytes=(used * 3 * SHAPE.inner + tokens) * SHAPE.size * DTYPE_BYTES + results,
        loaded_bytes=loaded + between * DTYPE_BYTES + results,
        needed_operations=6 * num_rows * SHAPE.size * SHAPE.inner,
        executed_operations=2
        * blocks
        * rows
        * (2 * columns[0] * gate_up.columns * SHAPE.size + columns[1] * down.columns * SHAPE.inner),
    )


def _loaded(blocks: int, tile: ProductTile, columns: int, inputs: int, num_rows: int, *, matrices: int) -> int:
    """Return the bytes that all programs of a product load: rows once for each tile of columns, and weights."""
    return columns * inputs * (num_rows + blocks * matrices * tile.columns) * DTYPE_BYTES


def _rows_of_experts(num_rows: int) -> list[int]:
    return [len(range(expert, num_rows, SHAPE.experts)) for expert in range(SHAPE.experts)]


def table() -> str:
    """Return the table of the page."""
    head = (
        "| tokens | programs | bytes: needed, loaded | operations: needed, executed | bound | estimate |\n"
        "|---|---|---|---|---|---|\n"
    )
    return head + "".join(table_row(f"{tokens:,}", estimate(tokens)) for tokens in CASES)


TABLE: Final = GeneratedTable(PAGE, "tools/expert_estimates.py", table)


if __name__ == "__main__":
    sys.exit(TABLE.main(sys.argv[1:], __doc__))
