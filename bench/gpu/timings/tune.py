"""Measures tiles of the kernels, and prints the entry of the device for kernels/triton/device_tiles.json.

Each tile is the one with the least geometric mean of the times of a few shapes.
"""

import datetime
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from unittest.mock import patch

import msgspec
import torch
import triton
from bench.gpu.checks.comparison import numbers
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.checks.paged_step import PagedStep
from bench.gpu.timing import Call, graph_seconds, sets_for
from bench.gpu.timings.tile_candidates import CANDIDATES, TINY, Candidates, Requests, Tile, entry_text, fastest
from bench.gpu.timings.tile_compilation import DTYPE, compile_all
from bench.gpu.worker import Context
from torch import Tensor

from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton.device_support import shared_bytes, tiles_for
from kvasir.kernels.triton.device_tiles import DeviceTiles
from kvasir.kernels.triton.few_rows import row_products
from kvasir.kernels.triton.few_rows.row_products import RowNorm, add_product_, product
from kvasir.kernels.triton.row_tiling import RowTile, RowTiles
from kvasir.kernels.triton.tiling import MIN_ROWS, AttentionTile, AttentionTiles, DecodeTile
from kvasir.layers.attention import KVCache, ScoreRule
from kvasir.layers.attention_backends import triton_planner
from kvasir.layers.attention_backends.triton_planner import TritonPlan

_REPEATS: Final = 5
_MIN_SETS: Final = 2
# Tiles of each list that are printed.
_SHOWN: Final = 4


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    candidates = TINY if context.tiny else CANDIDATES
    present = tiles_for(torch.device(context.device))
    if context.on_gpu:
        context.line(f"tune: {compile_all(candidates)} kernels are compiled")
    with kernels_of(context.device):
        attention = _tuned_attention(context, candidates, present)
    rows = _tuned_rows(context, candidates, present)
    entry = DeviceTiles(_measured(), attention, rows)
    name = torch.cuda.get_device_name() if context.on_gpu else "cpu"
    context.record("entry", {name: msgspec.to_builtins(entry)})
    context.line(f"the entry for runtime/kvasir/kernels/triton/device_tiles.json:\n{entry_text(name, entry)}")


def _measured() -> str:
    return f"{datetime.date.today()}, triton {triton.__version__}, torch {torch.__version__}"


def _choose(context: Context, name: str, times: Mapping[Tile, Sequence[float]], present: Tile) -> Tile:
    """Report the times of a tile, and return the fastest one."""
    order = fastest(times)
    if not order:
        raise RuntimeError(f"no candidate for {name} runs on this device")

    def text(tile: Tile) -> str:
        mean = f"{statistics.geometric_mean(times[tile]) * 1e6:.1f} us" if tile in times else "not measured"
        return f"{list(msgspec.structs.astuple(tile))} {mean}"

    shown = ", ".join(text(tile) for tile in order[:_SHOWN])
    context.record(name, {str(msgspec.to_builtins(tile)): list(times[tile]) for tile in order})
    context.line(f"tune: {name}: {shown}; present: {text(present)}")
    return order[0]


# ------------------------------------------------------------------------------------------------------- attention


def _tuned_attention(context: Context, candidates: Candidates, present: DeviceTiles) -> AttentionTiles:
    now = present.attention
    found: dict[str, DecodeTile] = {}
    for name, tile in (("few", now.few), ("decode", now.decode)):
        by_rows = {each.of_rows(MIN_ROWS): each for each in candidates.decodes}
        times = _attention_times(context, candidates, name, list(by_rows), now)
        found[name] = _choose(context, name, {by_rows[each]: seconds for each, seconds in times.items()}, tile)
    times = _attention_times(context, candidates, "prefill", candidates.prefills, now)
    return AttentionTiles(found["few"], found["decode"], _choose(context, "prefill", times, now.prefill))


def _attention_times(
    context: Context,
    candidates: Candidates,
    name: str,
    tiles: Sequence[AttentionTile],
    present: AttentionTiles,
) -> dict[AttentionTile, list[float]]:
    """Return the times of the tiles that fit the device, of a call for each step."""
    fitting = [tile for tile in tiles if tile.shared_bytes <= shared_bytes(torch.device(context.device))]
    times: dict[AttentionTile, list[float]] = {tile: [] for tile in fitting}
    for requests in candidates.steps[name]:
        for rows in sorted({tile.rows for tile in fitting}):
            same = [tile for tile in fitting if tile.rows == rows]
            # A work list depends on the rows of a tile: prefills are planned with them.
            wide = msgspec.structs.replace(present, prefill=same[0])
            with _planned_with(context, wide):
                step = PagedStep(candidates.heads, requests, DTYPE, context.device)
            caches = _caches(step, requests, candidates)
            for tile in same:
                _time(context, times, tile, _attention_calls(step, caches, tile))
    return {tile: seconds for tile, seconds in times.items() if seconds}


@contextmanager
def _planned_with(context: Context, tiles: AttentionTiles) -> Iterator[None]:
    present = tiles_for(torch.device(context.device))
    with patch.object(
        triton_planner, "tiles_for", lambda device: msgspec.structs.replace(present, attention=tiles)
    ):
        yield


def _caches(step: PagedStep, requests: Requests, candidates: Candidates) -> list[KVCache]:
    # Together they exceed the cache of the device.
    step.cache.blocks.normal_()
    num_bytes = sum(computed + new for computed, new in requests) * candidates.heads.kv_bytes(DTYPE)
    more = max(_MIN_SETS, sets_for(num_bytes)) - 1
    return [step.cache, *(KVCache(step.cache.blocks.clone(), step.cache.group) for _ in range(more))]


def _attention_calls(step: PagedStep, caches: Sequence[KVCache], tile: AttentionTile) -> list[Call]:
    assert isinstance(step.plan, TritonPlan)
    heads, plan = step.heads, replace(step.plan, tile=tile)
    q = numbers(len(step.positions), heads.query_size, dtype=DTYPE, device=step.device, seed=0)

    def call(cache: KVCache) -> Call:
        return lambda: plan.attend(q, cache, ScoreRule(heads.head_dim**-0.5))

    return [call(cache) for cache in caches]


# ---------------------------------------------------------------------------------------------------- row products


def _tuned_rows(context: Context, candidates: Candidates, present: DeviceTiles) -> RowTiles:
    found: dict[str, RowTile] = {}
    for name, shapes in candidates.products.items():
        weights = 2 if name.startswith("gate") else 1
        fitting = [
            tile
            for tile in candidates.rows
            if tile.shared_bytes(weights) <= shared_bytes(torch.device(context.device))
        ]
        times: dict[RowTile, list[float]] = {tile: [] for tile in fitting}
        for outputs, inputs in shapes:
            calls = _product_calls(context, name, weights * outputs, inputs)
            for tile in fitting:
                with _multiplied_with(present, tile):
                    _time(context, times, tile, calls)
        complete = {tile: seconds for tile, seconds in times.items() if seconds}
        found[name] = _choose(context, name, complete, getattr(present.row_product, name))
    return RowTiles(**found)


@contextmanager
def _multiplied_with(present: DeviceTiles, tile: RowTile) -> Iterator[None]:
    tiles = msgspec.structs.replace(present, row_product=RowTiles(tile, tile, tile, tile))
    with patch.object(row_products, "tiles_for", lambda device: tiles):
        yield


def _product_calls(context: Context, name: str, weight_rows: int, inputs: int) -> list[Call]:
    # Together the weights exceed the cache of the device.
    sets = max(_MIN_SETS, sets_for(2 * weight_rows * inputs))
    x, norm_weight = (_drawn(context, shape) for shape in ((1, inputs), (inputs,)))
    total = _drawn(context, (1, weight_rows))
    norm = RowNorm(norm_weight, 1e-5, 0.0)

    def call(weight: Tensor) -> Call:
        if name == "add":
            return lambda: add_product_(total, x, weight, None)
        activation = Activation.SILU if name.startswith("gate") else None
        return lambda: product(x, weight, None, norm=norm, activation=activation)

    return [call(_drawn(context, (weight_rows, inputs))) for _ in range(1 if context.tiny else sets)]


def _drawn(context: Context, shape: tuple[int, ...]) -> Tensor:
    return numbers(*shape, dtype=DTYPE, device=context.device, seed=0, scale=0.1)


# ------------------------------------------------------------------------------------------------------------ both


def _time(context: Context, times: dict[Tile, list[float]], tile: Tile, calls: Sequence[Call]) -> None:
    """Add the time of a call, or drop the tile if its kernel does not run."""
    if tile not in times:
        return
    try:
        times[tile].append(graph_seconds(calls, on_gpu=context.on_gpu, repeats=_REPEATS))
    except Exception as error:
        if context.on_gpu:
            torch.cuda.synchronize()  # raises if the device is broken
        del times[tile]
        context.line(f"tune: {tile} does not run: {str(error).strip().splitlines()[0][:200]}")
