"""Steps over a paged cache whose unused places hold NaN: by the kernels, and by the definition of attention."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvasir.kernels.triton.device_support import FP8
from kvasir.kernels.triton.paged_kernels import PagedKernels, Partials, Work
from kvasir.kernels.triton.tiling import AttentionTile, PagedShape
from kvasir.kernels.triton.work_list import WorkList, work_list

SCALE: Final = 0.2
TOLERANCES: Final = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Absolute and relative. The interpreter truncates the results in bfloat16 instead of rounding them."""


class PagedCase:
    """`requests`: tokens before the step, and tokens of the step. `scales`: of K and V, in a cache of fp8."""

    def __init__(
        self,
        shape: PagedShape,
        requests: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        seed: int = 0,
        scales: tuple[float, float] | None = None,
    ) -> None:
        self.shape, self.dtype, self._scales = shape, dtype, scales
        self.computed = np.array([computed for computed, _ in requests])
        self.new = np.array([new for _, new in requests])
        generator = torch.Generator().manual_seed(seed)
        random = np.random.default_rng(seed)
        self._kv = [self._randn(generator, c + n, 2, shape.kv_heads, shape.head_dim) for c, n in requests]
        self.q = self._randn(generator, int(self.new.sum()), shape.heads * shape.head_dim)
        blocks = -(-(self.computed + self.new) // shape.block_size)
        num_blocks = 1 + int(blocks.sum())
        ids = random.permutation(np.arange(1, num_blocks)).astype(np.int32)
        self.table = np.zeros((len(requests), int(blocks.max())), np.int32)
        for row, own in enumerate(np.split(ids, np.cumsum(blocks)[:-1])):
            self.table[row, : len(own)] = own
        size = (num_blocks, 2, shape.kv_heads, shape.block_size, shape.head_dim)
        self.cache = torch.full(size, torch.nan).to(dtype if scales is None else FP8)
        for row, computed in enumerate(self.computed):
            slots = self._slots(row, 0, int(computed))
            self._by_slot()[slots // shape.block_size, slots % shape.block_size] = self._stored(row)[:computed]

    def step(
        self,
        tile: AttentionTile,
        *,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        programs: int = 1,
    ) -> Tensor:
        """Write K and V of the step and attend: [T, heads * head_dim]"""
        kernels = PagedKernels(self.shape)
        rows = range(len(self.new))
        kv = torch.cat([self._kv[row][self.computed[row] :].flatten(1) for row in rows])
        slots = [self._slots(row, int(self.computed[row]), int(self.new[row])) for row in rows]
        k_scale, v_scale = self._scales or (1.0, 1.0)
        kernels.write(torch.cat(slots).int(), kv, self.cache, k_scale=k_scale, v_scale=v_scale)
        listed = self.work_list(tile, window, programs)
        partials = Partials.empty(listed.num_slots, self.shape, tile, torch.device("cpu"))
        for part in (partials.out, partials.maximum, partials.total):
            part.fill_(torch.nan)
        items = listed.at_tables(0, self.table.shape[1])
        tables, there, merges = (torch.from_numpy(each) for each in (self.table, items, listed.merges))
        work = Work(tables.flatten(), there, merges, partials)
        return kernels.attend(
            work,
            tile,
            self.q,
            self.cache,
            scale=SCALE,
            window=window,
            softcap=softcap,
            sinks=sinks,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    def work_list(self, tile: AttentionTile, window: int | None, programs: int) -> WorkList:
        return work_list(
            self.computed,
            self.new,
            tokens_per_item=tile.tokens(self.shape.group),
            window=window,
            kv_heads=self.shape.kv_heads,
            programs=programs,
        )

    def expected(
        self, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        """Compute attention by its definition, in float64."""
        shape, parts = self.shape, []
        queries = self.q.double().view(-1, shape.kv_heads, shape.group, shape.head_dim).split(self.new.tolist())
        k_scale, v_scale = self._scales or (1.0, 1.0)
        for row, (query, computed, new) in enumerate(zip(queries, self.computed, self.new, strict=True)):
            k, v = self._stored(row).double().unbind(1)  # [keys, kv_heads, head_dim]
            k, v = k * k_scale, v * v_scale
            scores = torch.einsum("thgd,khd->hgtk", query, k) * SCALE
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            distance = torch.arange(computed, computed + new)[:, None] - torch.arange(len(k))
            hidden = (distance < 0) | (distance >= (window or len(k)))
            scores = scores.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                column = sinks.double().view(shape.kv_heads, -1, 1, 1).expand(-1, -1, len(query), 1)
                scores = torch.cat((scores, column), dim=-1)
            weights = scores.softmax(-1)[..., : len(k)]
            parts.append(torch.einsum("hgtk,khd->thgd", weights, v).flatten(1))
        return torch.cat(parts)

    def check(
        self,
        tile: AttentionTile,
        *,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        programs: int = 1,
    ) -> None:
        output = self.step(tile, window=window, softcap=softcap, sinks=sinks, programs=programs)
        tolerance = TOLERANCES[self.dtype]
        torch.testing.assert_close(
            output.double(), self.expected(window, softcap, sinks), rtol=tolerance, atol=tolerance
        )

    def _stored(self, row: int) -> Tensor:
        """[keys, 2, kv_heads, head_dim] of a request, as the cache has them"""
        kv = self._kv[row]
        if self._scales is None:
            return kv
        inverses = torch.tensor([1.0 / scale for scale in self._scales])  # the kernel multiplies by them
        return (kv.float() * inverses[:, None, None]).clamp(-448, 448).to(FP8)

    def _randn(self, generator: torch.Generator, *size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(self.dtype)

    def _slots(self, row: int, first: int, count: int) -> Tensor:
        """[count] of the tokens of a request from `first` on"""
        positions = np.arange(first, first + count)
        blocks = self.table[row, positions // self.shape.block_size].astype(np.int64)
        return torch.from_numpy(blocks * self.shape.block_size + positions % self.shape.block_size)

    def _by_slot(self) -> Tensor:
        """[num_blocks, block_size, 2, kv_heads, head_dim]"""
        return self.cache.permute(0, 3, 1, 2, 4)
