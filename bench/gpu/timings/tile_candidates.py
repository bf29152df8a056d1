"""The tiles that tune.py measures, the shapes that it measures them with, and the choice. No triton."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from kvasir.kernels.triton.device_tiles import DeviceTiles
from kvasir.kernels.triton.row_tiling import RowTile
from kvasir.kernels.triton.tiling import AttentionTile, DecodeTile
from kvasir.layers.attention import HeadShape

Tile = TypeVar("Tile", RowTile, AttentionTile, DecodeTile)
# Tokens before a step, and tokens of the step.
Requests = list[tuple[int, int]]


@dataclass(frozen=True)
class Candidates:
    decodes: tuple[DecodeTile, ...]
    prefills: tuple[AttentionTile, ...]
    rows: tuple[RowTile, ...]
    heads: HeadShape
    # Keyed by the fields of AttentionTiles.
    steps: Mapping[str, tuple[Requests, ...]]
    # Outputs and inputs, by the fields of RowTiles.
    products: Mapping[str, tuple[tuple[int, int], ...]]


def _decodes(requests: int, length: int) -> Requests:
    return [(length - 1, 1)] * requests


CANDIDATES: Final = Candidates(
    decodes=tuple(
        DecodeTile(keys, num_warps, num_stages)
        for keys, num_warps, stages in (
            (32, 1, (2, 3)),
            (32, 2, (2, 3)),
            (64, 2, (2, 3)),
            (64, 4, (2, 3)),
            (128, 2, (3,)),
            (128, 4, (2, 3)),
        )
        for num_stages in stages
    ),
    prefills=tuple(
        AttentionTile(rows, keys, num_warps, num_stages)
        for rows, keys, num_warps, stages in (
            (64, 32, 4, (2,)),
            (64, 64, 4, (2, 3)),
            (128, 32, 4, (3,)),
            (128, 32, 8, (2,)),
            (128, 64, 4, (2, 3)),
            (128, 64, 8, (2, 3)),
            (128, 128, 8, (2, 3)),
        )
        for num_stages in stages
    ),
    rows=tuple(
        RowTile(outputs, inputs, num_warps, num_stages)
        for outputs, inputs, num_warps, stages in (
            (2, 512, 1, (1, 4)),
            (2, 1024, 1, (1, 3)),
            (2, 1024, 2, (1, 3)),
            (4, 256, 1, (1, 3, 6)),
            (4, 512, 1, (1, 3)),
            (4, 512, 2, (1, 3, 4)),
            (4, 512, 4, (1, 3, 5)),
            (4, 1024, 4, (3, 4)),
            (8, 256, 2, (1, 3, 5)),
            (8, 256, 4, (3, 5)),
            (8, 512, 4, (1, 3, 4)),
            (16, 256, 4, (1, 3)),
        )
        for num_stages in stages
    ),
    heads=HeadShape(32, 8, 128),
    steps={
        "few": (_decodes(1, 512), _decodes(1, 4096), _decodes(8, 1024)),
        "decode": (_decodes(32, 600), _decodes(32, 4096), _decodes(256, 600)),
        "prefill": ([(0, 8192)], [(0, 1024)] * 8),
    },
    # Of Llama-3.1-8B, and of Qwen3-0.6B.
    products={
        "norm": ((6144, 4096), (4096, 1024)),
        "add": ((4096, 4096), (4096, 14336), (1024, 2048), (1024, 3072)),
        "gate_wide": ((14336, 4096),),
        "gate": ((3072, 1024),),
    },
)
# For a smoke test.
TINY: Final = Candidates(
    decodes=CANDIDATES.decodes[:2],
    prefills=(AttentionTile(16, 32, 4, 2), AttentionTile(32, 16, 4, 2)),
    rows=(RowTile(4, 64, 4, 1), RowTile(8, 32, 4, 2)),
    heads=HeadShape(4, 2, 16),
    steps={"few": (_decodes(1, 40),), "decode": (_decodes(3, 20),), "prefill": ([(0, 20)],)},
    products={"norm": ((32, 64),), "add": ((32, 64),), "gate_wide": ((16, 2048),), "gate": ((16, 64),)},
)


def fastest(times: Mapping[Tile, Sequence[float]]) -> list[Tile]:
    """Return the tiles by the geometric mean of their times, the fastest one first."""
    return sorted(times, key=lambda tile: statistics.geometric_mean(times[tile]))


def entry_text(name: str, entry: DeviceTiles) -> str:
    """Return the lines of an entry as the file has them."""
    values = msgspec.to_builtins(entry)
    fields = [f'    "{field}": {json.dumps(value)}' for field, value in values.items()]
    return f'  "{name}": {{\n' + ",\n".join(fields) + "\n  }"
