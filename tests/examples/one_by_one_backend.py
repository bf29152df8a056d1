"""An attention backend in plain torch that computes the requests of a step one by one.

The example of docs/design/adding-an-attention-backend.md.
"""

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvasir.layers.attention import BlockTable, HeadShape, KVCache, ScoreRule, StepRows, head_major_cache
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rotation, rotate_qk_
from kvasir.layers.step_memory import StepMemory


@dataclass(frozen=True)
class OneByOnePlan:
    table: BlockTable
    step: StepRows
    heads: HeadShape
    block_size: int

    def write(self, kv: Tensor, cache: KVCache) -> None:
        step = self.step
        blocks = torch.from_numpy(self.table[step.token_rows, step.token_blocks].astype(np.int64))
        numbers = kv.view(-1, 2, self.heads.kv_heads, self.heads.head_dim)
        cache.by_token.index_put_((blocks, torch.from_numpy(step.offsets)), numbers)

    def attend(self, q: Tensor, cache: KVCache, rule: ScoreRule) -> Tensor:
        parts, start = [], 0
        for row, computed, new in zip(self.step.rows, self.step.computed, self.step.new, strict=True):
            queries = q[start : start + new] * rule.scale
            parts.append(self._attend(queries, cache, int(row), int(computed), rule))
            start += new
        return torch.cat(parts)

    def write_and_attend(
        self, qkv: Tensor, cache: KVCache, rule: ScoreRule, rotation: Rotation | None = None
    ) -> Tensor:
        if rotation is not None:
            rotate_qk_(qkv, self.heads.kv_heads, self.heads.head_dim, rotation)
        self.write(qkv[:, self.heads.query_size :], cache)
        q = qkv[:, : self.heads.query_size]
        return self.attend(q, cache, rule)

    def _attend(self, q: Tensor, cache: KVCache, row: int, computed: int, rule: ScoreRule) -> Tensor:
        """[new tokens, heads * head_dim] of one request → the same shape"""
        heads, length = self.heads, computed + len(q)
        window = rule.window
        first = 0 if window is None else max(0, computed + 1 - window)  # that the first query sees
        k, v = self._read(cache, row, first, length)  # [kv_heads, keys, head_dim]
        q_by_head = q.view(-1, heads.kv_heads, heads.group, heads.head_dim).permute(1, 2, 0, 3)
        scores = q_by_head.float() @ k[:, None].float().mT  # [kv_heads, group, queries, keys]
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        distance = torch.arange(computed, length)[:, None] - torch.arange(first, length)
        hidden = (distance < 0) | (distance >= (window or length))
        scores = scores.masked_fill(hidden, -torch.inf)
        if rule.sinks is not None:  # a last score, whose weight is dropped
            column = rule.sinks.view(heads.kv_heads, heads.group, 1, 1).expand(-1, -1, len(q), 1)
            scores = torch.cat((scores, column), dim=-1)
        weights = scores.softmax(-1)[..., : length - first].to(v.dtype)
        outputs: Tensor = weights @ v[:, None]  # [kv_heads, group, queries, head_dim]
        return outputs.permute(2, 0, 1, 3).flatten(1)

    def _read(self, cache: KVCache, row: int, first: int, end: int) -> Tensor:
        """[2, kv_heads, tokens, head_dim] of the tokens `first` to `end`, without any other: it may be NaN."""
        place = first // self.block_size
        ids = self.table[row, place : -(-end // self.block_size)].astype(np.int64)
        kv = cache.blocks[torch.from_numpy(ids)].permute(1, 2, 0, 3, 4).flatten(2, 3)
        skipped = place * self.block_size
        return kv[:, :, first - skipped : end - skipped]


@dataclass(frozen=True)
class OneByOnePlanner:
    table: BlockTable
    heads: HeadShape
    block_size: int

    def plan(self, step: StepRows) -> OneByOnePlan:
        return OneByOnePlan(self.table, step, self.heads, self.block_size)


class OneByOneBackend:
    name = "one-by-one"

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool:
        return placement.device.type == "cpu" and not spec.block.is_fp8

    def cache(self, memory: Tensor, block: BlockShape, group: int) -> KVCache:
        return head_major_cache(memory, block, group)

    def planner(
        self,
        table: BlockTable,
        spec: KVSpec,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
        memory: StepMemory,
    ) -> OneByOnePlanner:
        return OneByOnePlanner(table, heads, spec.block.block_size)
