"""Chooses how a CPU computes attention in bfloat16, by measuring a chunk of a prompt on this machine.

Dot products of pairs suit AVX512-BF16, torch's attention AMX. The last bits differ, so a batch-invariant engine and
one in float32 have no choice.
"""

import logging
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvasir.kernels.cpu import MAX_TILE_ROWS, Kernels
from kvasir.layers.attention import AttentionPlanner, BlockTable, HeadShape, KVCache, ScoreRule, StepRows
from kvasir.layers.attention_backends.gather import GatherPlan
from kvasir.layers.attention_backends.gather_planner import GatherPlanner
from kvasir.layers.attention_backends.tiles import TilePlan, TilePlanner
from kvasir.layers.linear_method import CLEARLY
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rotation, rotate_qk_

log = logging.getLogger(__name__)

# Torch's attention has a cost per call.
MIN_TORCH_TOKENS: Final = 64
# Of K and V that are copied for torch's attention, of one request at a time.
MAX_COPIED_BYTES: Final = 64 * 2**20

_CONTEXT, _BLOCK_SIZE, _ROUNDS = 512, 16, 3  # of the measurement: half of the tokens are new


@dataclass(frozen=True)
class AttentionChoice:
    """How the tokens of a step are computed."""

    pairs: bool = False  # dot products of pairs of bfloat16, for decodes too
    torch: bool = False  # torch's attention for prompts

    def __str__(self) -> str:
        kernel = "dot products of bfloat16" if self.pairs else "float32 in the kernel"
        return f"torch for prompts, else {kernel}" if self.torch else kernel


PLAIN, PAIRS, TORCH = AttentionChoice(), AttentionChoice(pairs=True), AttentionChoice(torch=True)


@dataclass(frozen=True)
class PromptPlan:
    """Prompts by torch's attention, and the tokens before them by the kernel."""

    all: TilePlan
    before: TilePlan | None
    first: int  # token of the prompts
    prompts: GatherPlan

    def write(self, kv: Tensor, cache: KVCache) -> None:
        self.all.write(kv, cache)

    def attend(self, q: Tensor, cache: KVCache, rule: ScoreRule) -> Tensor:
        if rule.softcap is not None or rule.sinks is not None:  # torch's attention has neither
            return self.all.attend(q, cache, rule)
        prompts = self.prompts.attend(q[self.first :], cache, rule)
        if self.before is None:
            return prompts
        return torch.cat((self.before.attend(q[: self.first], cache, rule), prompts))

    def write_and_attend(
        self, qkv: Tensor, cache: KVCache, rule: ScoreRule, rotation: Rotation | None = None
    ) -> Tensor:
        heads = self.prompts.heads
        if rotation is not None:
            rotate_qk_(qkv, heads.kv_heads, heads.head_dim, rotation)
        self.write(qkv[:, heads.query_size :], cache)
        return self.attend(qkv[:, : heads.query_size], cache, rule)


class PromptPlanner:
    def __init__(self, tiles: TilePlanner, gather: GatherPlanner, token_bytes: int) -> None:
        self._tiles, self._gather, self._token_bytes = tiles, gather, token_bytes

    def plan(self, step: StepRows) -> TilePlan | PromptPlan:
        whole = self._tiles.plan(step)
        first = int(np.count_nonzero(step.new == 1))
        new, lengths = step.new[first:], (step.computed + step.new)[first:]
        if not len(new) or new.min() < MIN_TORCH_TOKENS or lengths.max() * self._token_bytes > MAX_COPIED_BYTES:
            return whole
        before = self._tiles.plan(_part(step, slice(first))) if first else None
        return PromptPlan(whole, before, first, self._gather.plan(_part(step, slice(first, None))))


def _part(step: StepRows, part: slice) -> StepRows:
    # Rows before the prompts have one token each.
    return StepRows(
        step.rows[part],
        step.computed[part],
        step.new[part],
        step.token_rows[part],
        step.token_blocks[part],
        step.offsets[part],
    )


def prompt_planner(
    kernels: Kernels,
    table: BlockTable,
    block_size: int,
    heads: HeadShape,
    windows: Set[int | None],
    placement: Placement,
    choice: AttentionChoice | None = None,
) -> AttentionPlanner:
    """`choice`: None for the fastest one on this machine."""
    if choice is None:
        choice = _fastest(kernels, heads, placement)
    tiles = TilePlanner(kernels, table, block_size, heads, pairs=choice.pairs)
    if not choice.torch:
        return tiles
    gather = GatherPlanner(table, block_size, heads, windows, placement)
    return PromptPlanner(tiles, gather, heads.kv_bytes(placement.dtype))


def _fastest(kernels: Kernels, heads: HeadShape, placement: Placement) -> AttentionChoice:
    if placement.dtype != torch.bfloat16 or placement.batch_invariant:
        return PLAIN
    threads = torch.get_num_threads()
    kv_heads = min(heads.kv_heads, threads)  # a part of the heads, as all of them take long
    return choose(kernels, HeadShape(min(heads.group, 2) * kv_heads, kv_heads, heads.head_dim), threads)


@cache
def choose(kernels: Kernels, heads: HeadShape, threads: int) -> AttentionChoice:
    """Return the ways that are clearly the fastest for a chunk of a prompt."""
    times = measure(kernels, heads)
    pairs = PAIRS in times and times[PAIRS] * CLEARLY < times[PLAIN]
    choice = AttentionChoice(pairs=pairs, torch=times[TORCH] * CLEARLY < times[PAIRS if pairs else PLAIN])
    figures = "; ".join(f"{way} {seconds * 1e3:.2f} ms" for way, seconds in times.items())
    log.info("attention in bfloat16: %s (threads: %d; %s)", choice, threads, figures)
    return choice


@torch.inference_mode()
def measure(kernels: Kernels, heads: HeadShape) -> Mapping[AttentionChoice, float]:
    """Return the least seconds of each way, alternating."""
    dtype, blocks, new = kernels.dtype, _CONTEXT // _BLOCK_SIZE, _CONTEXT // 2
    table = np.arange(blocks, dtype=np.int32)[None]
    positions = np.arange(_CONTEXT - new, _CONTEXT)
    step = StepRows(
        rows=np.array([0]),
        computed=np.array([_CONTEXT - new]),
        new=np.array([new]),
        token_rows=np.zeros(new, np.int64),
        token_blocks=positions // _BLOCK_SIZE,
        offsets=positions % _BLOCK_SIZE,
    )
    kv_cache = KVCache(torch.ones(blocks, 2, heads.kv_heads, _BLOCK_SIZE, heads.head_dim, dtype=dtype))
    q = torch.ones(new, heads.query_size, dtype=dtype)
    ways = [PLAIN, TORCH] if kernels.pair_rows == MAX_TILE_ROWS else [PLAIN, PAIRS, TORCH]
    placement = Placement(torch.device("cpu"), dtype)
    plans = {
        way: prompt_planner(kernels, table, _BLOCK_SIZE, heads, {None}, placement, way).plan(step) for way in ways
    }
    times = dict.fromkeys(ways, float("inf"))
    for _ in range(_ROUNDS):
        for way, plan in plans.items():
            began = time.perf_counter()
            plan.attend(q, kv_cache, ScoreRule(heads.head_dim**-0.5))
            times[way] = min(times[way], time.perf_counter() - began)
    return times
