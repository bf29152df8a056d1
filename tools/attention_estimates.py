"""Writes the table of docs/design/triton-attention.md: bytes and operations of attention launches, by calculation.

    python -m tools.attention_estimates            # writes the table
    python -m tools.attention_estimates --check    # exits with 1 if the page has another table

The work lists are those of the planner. Nothing is measured.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from kvasir.kernels.triton.device_tiles import device_entries
from kvasir.kernels.triton.tiling import PagedShape, StepKind, attention_tile, decodes_kind
from kvasir.kernels.triton.work_list import work_list
from tools.generated_table import GeneratedTable

PAGE: Final = Path(__file__).parent.parent / "docs/design/triton-attention.md"

SHAPE: Final = PagedShape(heads=32, kv_heads=8, head_dim=128, block_size=16)
DTYPE_BYTES: Final = 2
BYTES_PER_SECOND: Final = 3.35e12
OPERATIONS_PER_SECOND: Final = 989e12
"""Dense products of bfloat16, and memory bandwidth, of an H100 SXM by its data sheet."""
PROGRAMS: Final = 4 * 132
"""As the planner counts them for its 132 multiprocessors."""
TILES: Final = device_entries()["NVIDIA H100 80GB HBM3"].attention

CASES: Final = {
    "1 decode after 32,767 tokens": [(32767, 1)],
    "64 decodes after 4,095 tokens": [(4095, 1)] * 64,
    "a prompt of 8,192 tokens": [(0, 8192)],
    "a chunk of 2,048 after 30,720": [(30720, 2048)],
    "64 decodes after 4,095, and a chunk of 512 after 4,096": [(4095, 1)] * 64 + [(4096, 512)],
}


@dataclass(frozen=True)
class Estimate:
    """Of one layer's launch."""

    programs: int
    needed_bytes: int
    """Each K and V once, queries and results."""
    loaded_bytes: int
    """By all programs, from the L2 cache or from memory; with the partial results."""
    needed_operations: int
    executed_operations: int
    """With the rows and keys that a tile pads."""

    @property
    def bound(self) -> float:
        """Seconds that no kernel can go below."""
        return max(self.needed_bytes / BYTES_PER_SECOND, self.needed_operations / OPERATIONS_PER_SECOND)

    @property
    def seconds(self) -> float:
        """Seconds of this kernel, at the device's peaks and without hits in the L2 cache."""
        return max(self.loaded_bytes / BYTES_PER_SECOND, self.executed_operations / OPERATIONS_PER_SECOND)


def estimate(requests: list[tuple[int, int]]) -> Estimate:
    """`requests`: tokens before the step, and tokens of the step."""
    computed, new = np.array(requests).T
    shape = SHAPE
    kind = StepKind.PREFILL if new.max() > 1 else decodes_kind(len(new), shape.kv_heads, PROGRAMS)
    tile = attention_tile(shape, DTYPE_BYTES, kind, TILES, warp_size=32)
    tokens_per_item = tile.tokens(shape.group)
    work = work_list(
        computed,
        new,
        tokens_per_item=tokens_per_item,
        window=None,
        kv_heads=shape.kv_heads,
        programs=PROGRAMS,
    )
    key_bytes = 2 * shape.head_dim * DTYPE_BYTES  # K and V of one KV head
    keys, tiles = 0, 0
    for _, _, tokens, position, segment, segments, _, _ in work.items.tolist():
        end = position + tokens
        length = -(-end // segments // tile.keys) * tile.keys
        own = max(0, min(end, (segment + 1) * length) - segment * length)
        keys += own
        tiles += -(-own // tile.keys)
    query_bytes = 2 * int(new.sum()) * shape.heads * shape.head_dim * DTYPE_BYTES
    partial_bytes = 2 * work.num_slots * shape.kv_heads * tile.rows * (shape.head_dim + 2) * 4
    pairs = int((new * computed + new * (new + 1) // 2).sum())
    return Estimate(
        programs=len(work.items) * shape.kv_heads,
        needed_bytes=int((computed + new).sum()) * shape.kv_heads * key_bytes + query_bytes,
        loaded_bytes=keys * shape.kv_heads * key_bytes + query_bytes + partial_bytes,
        needed_operations=4 * pairs * shape.heads * shape.head_dim,
        executed_operations=4 * tiles * tile.keys * tile.rows * shape.head_dim * shape.kv_heads,
    )


def table() -> str:
    """Return the table of the page."""
    head = (
        "| step | programs | bytes: needed, loaded | operations: needed, executed | bound | estimate |\n"
        "|---|---|---|---|---|---|\n"
    )
    return head + "".join(table_row(name, estimate(requests)) for name, requests in CASES.items())


def table_row(name: str, of: Estimate) -> str:
    cells = (
        name,
        f"{of.programs:,}",
        f"{of.needed_bytes / 1e6:,.0f} MB, {of.loaded_bytes / 1e6:,.0f} MB",
        f"{of.needed_operations / 1e9:,.1f} G, {of.executed_operations / 1e9:,.1f} G",
        f"{of.bound * 1e6:,.0f} µs",
        f"{of.seconds * 1e6:,.0f} µs",
    )
    return f"| {' | '.join(cells)} |\n"


TABLE: Final = GeneratedTable(PAGE, "tools/attention_estimates.py", table)


if __name__ == "__main__":
    sys.exit(TABLE.main(sys.argv[1:], __doc__))
