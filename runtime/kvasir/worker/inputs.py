"""Gathers a step's tensors from the rows of the request table; called by the model runner once per step.

The tokens of a step stand in one flat batch, decodes first:

    | one token of each decoding row, by length of context | chunk of a prefill | chunk of a prefill | ...
      └── DecodeGroup ──┘ └──── DecodeGroup ────┘            └── PrefillChunk ──┘

Work per token is numpy's; Python runs per group and per chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.layers.attention import AttentionPlan, DecodeGroup, PrefillChunk
from kvasir.layers.parameter import Placement
from kvasir.sampling.sampler import RandomRows
from kvasir.worker.request_table import RequestTable
from kvasir.worker.step import ScheduledRow

Ints = npt.NDArray[np.int64]

_PADDING_SHARE = 1.25
"""A decode group's longest context is at most this many times its shortest (and a block more)."""


@dataclass(frozen=True)
class StepBatch:
    """T tokens of which R are sampled after."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    plan: AttentionPlan
    sampled: Tensor | None  # [R] places of the tokens whose successors are sampled; None: all, in order
    random_rows: tuple[RandomRows, ...]
    rows: Ints  # [R] rows of the request table
    outputs: Ints  # [R] places in the step's output


class InputBuilder:
    """`gather_blocks` bounds the KV blocks that a decode group copies out of the cache at once."""

    def __init__(
        self,
        table: RequestTable,
        placement: Placement,
        *,
        block_size: int,
        kv_heads: int,
        vocab_size: int,
        gather_blocks: int,
    ) -> None:
        self._table = table
        self._placement = placement
        self._block_size = block_size
        self._gather_blocks = gather_blocks
        self._vocab_size = vocab_size
        # [2, 1, kv_heads, 1]: where K and V of each head lie in a block, see KVCache.by_head
        self._heads = np.arange(2 * kv_heads).reshape(2, 1, kv_heads, 1)

    def build(self, scheduled: Sequence[ScheduledRow]) -> StepBatch:
        table = self._table
        count = len(scheduled)
        rows = np.fromiter((table.row_of(row.request_id) for row in scheduled), np.int64, count)
        computed = np.fromiter((row.num_computed_tokens for row in scheduled), np.int64, count)
        new = np.fromiter((row.num_new_tokens for row in scheduled), np.int64, count)
        order = np.argsort(np.where(new == 1, computed, np.iinfo(np.int64).max), kind="stable")
        rows, computed, new = rows[order], computed[order], new[order]
        ends = np.cumsum(new)
        token_rows = np.repeat(rows, new)  # [T]
        positions = np.arange(ends[-1]) + np.repeat(computed - (ends - new), new)  # [T]
        blocks, offsets = np.divmod(positions, self._block_size)
        samples = computed + new == table.num_tokens[rows]
        sampled_rows = rows[samples]
        decodes = int(np.count_nonzero(new == 1))
        return StepBatch(
            token_ids=self._tensor(table.tokens[token_rows, positions].astype(np.int64)),
            positions=self._tensor(positions),
            plan=AttentionPlan(
                blocks=self._tensor(table.block_table[token_rows, blocks].astype(np.int64)),
                offsets=self._tensor(offsets),
                decode=tuple(self._decode_groups(rows[:decodes], computed[:decodes] + 1)),
                prefill=tuple(self._prefill_chunks(rows[decodes:], computed[decodes:], new[decodes:], decodes)),
            ),
            sampled=None if samples.all() and decodes == count else self._tensor(ends[samples] - 1),
            random_rows=tuple(self._random_rows(sampled_rows)),
            rows=sampled_rows,
            outputs=order[samples],
        )

    def _decode_groups(self, rows: Ints, lengths: Ints) -> Iterator[DecodeGroup]:
        """Rows come sorted by length: a group ends where it would copy too much, or pad too much."""
        blocks = -(-lengths // self._block_size)
        start = 0
        while start < len(rows):
            sizes = np.arange(1, len(rows) - start + 1) * blocks[start:]
            fits = int(np.searchsorted(sizes, self._gather_blocks, side="right"))
            alike = int(np.searchsorted(blocks[start:], blocks[start] * _PADDING_SHARE + 1, side="right"))
            end = start + max(1, min(fits, alike))
            width = int(blocks[end - 1])
            yield DecodeGroup(
                tokens=slice(start, end),
                pieces=self._pieces(rows[start:end], width),
                mask=self._padding_mask(lengths[start:end], width * self._block_size),
            )
            start = end

    def _pieces(self, rows: Ints, width: int) -> Tensor:
        """[2 * rows * kv_heads * width]: the first blocks of these rows, head by head."""
        blocks = self._table.block_table[rows, None, :width].astype(np.int64)  # [rows, 1, width]
        return self._tensor((blocks * self._heads.size + self._heads).reshape(-1))

    def _padding_mask(self, lengths: Ints, width: int) -> Tensor | None:
        """[rows, 1, 1, width]: -inf beyond each row's length."""
        if lengths[0] == width:  # the shortest fills its blocks, and so do all
            return None
        padding = np.arange(width) >= lengths[:, None]
        return self._tensor(np.where(padding, np.float32(-np.inf), np.float32(0)))[:, None, None]

    def _prefill_chunks(self, rows: Ints, computed: Ints, new: Ints, start: int) -> Iterator[PrefillChunk]:
        for index, (before, size) in enumerate(zip(computed.tolist(), new.tolist(), strict=True)):
            length = before + size
            width = -(-length // self._block_size)
            yield PrefillChunk(
                tokens=slice(start, start + size),
                pieces=self._pieces(rows[index : index + 1], width) if before else None,
                mask=self._causal_mask(before, size) if before else None,
                length=length,
            )
            start += size

    def _causal_mask(self, before: int, size: int) -> Tensor:
        """[size, before + size]: -inf where the key stands after the query."""
        mask = torch.full(
            (size, before + size), -torch.inf, dtype=self._placement.dtype, device=self._placement.device
        )
        return mask.triu_(before + 1)

    def _random_rows(self, rows: Ints) -> Iterator[RandomRows]:
        """Of the sampled rows those that draw at random: the plain ones, and the ones with top-k or top-p."""
        table = self._table
        random = ~table.greedy[rows]
        if not random.any():
            return
        filtered = (table.top_k[rows] > 0) | (table.top_p[rows] < 1)
        for kind in (False, True):
            places = np.flatnonzero(random & (filtered == kind))
            if len(places) == 0:
                continue
            chosen = rows[places]
            top_k, top_p = table.top_k[chosen], table.top_p[chosen]
            yield RandomRows(
                rows=self._tensor(places),
                temperature=self._tensor(table.temperature[chosen])[:, None],
                seeds=self._tensor(table.seed[chosen]),
                positions=self._tensor(table.num_tokens[chosen] - table.num_prompt_tokens[chosen]),
                top_k=self._tensor(np.where(top_k > 0, top_k, self._vocab_size))[:, None] if kind else None,
                top_p=self._tensor(np.where(top_p < 1, top_p, np.inf))[:, None] if kind else None,
            )

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self._placement.device, non_blocking=True)
