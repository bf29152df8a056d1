"""One step of some requests over a paged cache whose unused places hold NaN: by the kernels, and by definition.

The step is built by the engine's InputBuilder, so the planner and the kernels run as they do in an engine.
"""

from collections.abc import Sequence
from typing import Final

import torch
from bench.gpu.checks.comparison import numbers
from torch import Tensor

from kvasir.layers.attention import UNSCALED, AttentionPlan, HeadShape, KVScales
from kvasir.layers.kv import FullAttention, KVCacheConfig, KVGroup
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rope, RotaryEmbedding, Rotation, rotate_reference_
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.kv_memory.cache_memory import allocate, block_shape
from kvasir.worker.step import NewRow, ScheduledRow

GREEDY: Final = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


class PagedStep:
    """A step of `requests`, each with the tokens before the step and those of it."""

    def __init__(
        self,
        heads: HeadShape,
        requests: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        device: str,
        *,
        window: int | None = None,
        block_size: int = 16,
        seed: int = 0,
        kv_dtype: torch.dtype | None = None,
        scales: KVScales = UNSCALED,
    ) -> None:
        # `kv_dtype`: of the cache, None: `dtype`. `scales`: of an fp8 cache.
        self.heads, self.dtype, self.device, self.window = heads, dtype, device, window
        self.requests = requests
        self.lengths = [computed + new for computed, new in requests]
        blocks = [-(-length // block_size) for length in self.lengths]
        placement = Placement(torch.device(device), dtype)
        groups = (KVGroup(FullAttention(block_shape(heads, block_size, kv_dtype or dtype)), (0,)),)
        table = RequestTable(len(requests), max(self.lengths), block_size)
        ids = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(seed)).add_(1).tolist()
        for index, (length, count) in enumerate(zip(self.lengths, blocks, strict=True)):
            table.add(NewRow(str(index), packed([index] * length), length, GREEDY))
            table.append_blocks(table.row_of(str(index)), [[ids.pop() for _ in range(count)]])
        (self.cache,) = allocate(KVCacheConfig(groups, sum(blocks)), heads, placement, {0: scales})
        inputs = InputBuilder(
            table,
            placement,
            groups=groups,
            heads=heads,
            windows=(window,),
            vocab_size=len(requests),
            max_tokens=2**14,
        )
        rows = [ScheduledRow(str(index), computed, new, []) for index, (computed, new) in enumerate(requests)]
        batch = inputs.build(rows)
        self.plan: AttentionPlan = batch.attention[0]
        count = sum(new for _, new in requests)
        self.positions = batch.positions[:count]
        self.request = batch.token_ids[:count]  # [T] each request's tokens are its number
        starts = torch.tensor(self.lengths).cumsum(0) - torch.tensor(self.lengths)
        self._starts = starts.to(device)
        self._places = self._starts[self.request] + self.positions  # [T] of all tokens
        self._blocks, self._offsets = self._slots(table, block_size)

    def _slots(self, table: RequestTable, block_size: int) -> tuple[Tensor, Tensor]:
        # [all tokens] block of each token, and place in the block
        blocks = []
        for index, length in enumerate(self.lengths):
            own = torch.from_numpy(table.block_tables[0, table.row_of(str(index))].astype("int64"))
            blocks.append(own[torch.arange(length) // block_size])
        offsets = torch.cat([torch.arange(length) % block_size for length in self.lengths])
        return torch.cat(blocks).to(self.device), offsets.to(self.device)

    def fill(self, seed: int = 0) -> None:
        """Draw Q, K and V of all tokens; write those before the step into the cache."""
        heads, count = self.heads, sum(self.lengths)
        self.kv = numbers(
            count, 2, heads.kv_heads, heads.head_dim, dtype=self.dtype, device=self.device, seed=seed + 1
        )
        width = heads.query_size + 2 * heads.kv_size
        self.qkv = numbers(len(self._places), width, dtype=self.dtype, device=self.device, seed=seed + 2)
        self.qkv[:, heads.query_size :] = self.kv[self._places].flatten(1)
        self.cache.blocks.fill_(torch.nan)
        is_new = torch.zeros(count, dtype=torch.bool, device=self.device)
        is_new[self._places] = True
        old = (~is_new).nonzero()[:, 0]
        self.cache.by_token[self._blocks[old], self._offsets[old]] = self.kv[old]
        self.before = self.cache.blocks.clone()

    # ------------------------------------------------------------------------------------------------- references

    def written(self, kv: Tensor) -> Tensor:
        # The content of the cache with kv [T, 2 * kv_heads * head_dim] of the step in it.
        expected = self.before.clone()
        by_token = expected.permute(0, 3, 1, 2, 4)
        values = kv.view(-1, 2, self.heads.kv_heads, self.heads.head_dim).to(self.dtype)
        by_token[self._blocks[self._places], self._offsets[self._places]] = values
        return expected

    def of_step(self) -> Tensor:
        # [T, 2, kv_heads, head_dim] K and V of the step's tokens in the cache.
        return self.cache.by_token[self._blocks[self._places], self._offsets[self._places]]

    def rotation(self, dim: int) -> Rotation:
        rotary = RotaryEmbedding(Rope(dim, 10000.0, None), 2**17, torch.device(self.device))
        return rotary.rotation(self.positions, self.dtype)

    def rotated(self, rotation: Rotation) -> Tensor:
        # qkv [T, (heads + 2 kv_heads) * head_dim], with Q and K rotated, in float64.
        exact = self.qkv.double()
        turned = exact[:, : -self.heads.kv_size].unflatten(1, (-1, self.heads.head_dim))
        rotate_reference_(turned, Rotation(rotation.cos.double(), rotation.sin.double()))
        return exact

    def attention(self, qkv: Tensor, scale: float, softcap: float | None = None) -> Tensor:
        # [T, heads * head_dim] by the definition of attention, in float64; qkv: of the step.
        heads = self.heads
        kv = self.kv.double()
        kv[self._places] = qkv[:, heads.query_size :].double().unflatten(1, (2, heads.kv_heads, -1))
        queries = qkv[:, : heads.query_size].double().view(-1, heads.kv_heads, heads.group, heads.head_dim)
        out = torch.empty_like(queries)
        for index, length in enumerate(self.lengths):
            rows = (self.request == index).nonzero()[:, 0]
            k, v = kv[int(self._starts[index]) :][:length].unbind(1)
            scores = torch.einsum("tkgd,lkd->kgtl", queries[rows], k) * scale
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            distance = self.positions[rows][:, None] - torch.arange(length, device=self.device)
            hidden = (distance < 0) | (distance >= (self.window or length))
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            out[rows] = torch.einsum("kgtl,lkd->tkgd", weights, v)
        return out.flatten(1)


def heads_of(text: str) -> HeadShape:
    # Query heads, K/V heads and numbers of a head: "32x8x128".
    return HeadShape(*(int(number) for number in text.split("x")))
