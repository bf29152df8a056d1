"""Gathers a step's tensors from the request table. The tokens are one flat batch, decodes first:

| decodes, by length of context | whole prompts, by length | chunks of longer prompts |
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.kernels.token_parts import places_within
from kvasir.layers.attention import AttentionPlan, AttentionPlanner, HeadShape, PadsDecodes, StepRows
from kvasir.layers.attention_backends.choose_backend import choose_backend
from kvasir.layers.kv import KVGroup
from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import step_memory
from kvasir.worker.batch.chunks import NO_DRAFTS, Drafts, chunks_of
from kvasir.worker.batch.prompt_logprobs import PromptSpan, prompt_spans
from kvasir.worker.batch.request_table import PENDING, RequestTable
from kvasir.worker.batch.sampling_inputs import SamplingInputs, SamplingPlan
from kvasir.worker.step import ScheduledRow

Ints = npt.NDArray[np.int64]

_BYTES_OF_TOKEN = 32
_BYTES_OF_ROW = 256
_BYTES_OF_PLANS = 128
# For sampling rules, whose number has no bound.
_SPARE_BYTES = 2**20


@dataclass(frozen=True)
class StepBatch:
    """T tokens. A token is sampled after R of them."""

    token_ids: Tensor  # [T], or PENDING
    pending_rows: Tensor | None  # [T] rows of the table; None: no token is pending
    positions: Tensor  # [T]
    attention: Mapping[int, AttentionPlan]  # by KV group
    sampled: Tensor | None  # [R] places of tokens before sampled ones; None: all, in order
    sampling: SamplingPlan
    rows: Ints  # [R] rows of the table, one with drafts more than once
    rows_there: Tensor  # [R] on the device
    outputs: Ints  # [R] places in the output
    prompt_spans: tuple[PromptSpan, ...]
    drafts: Drafts
    # T, if decodes were padded: only the first R tokens have a meaning.
    padded_to: int | None = None
    # Of tensors in a padded step, the same for each step of this size.
    addresses: tuple[int, ...] = ()
    adapter_slots: Tensor | None = None  # [T], of tokens on a GPU; None: no token has an adapter


@dataclass(frozen=True)
class _Tokens:
    token_ids: Tensor
    pending_rows: Tensor | None
    positions: Tensor
    attention: Mapping[int, AttentionPlan]
    size: int | None
    addresses: tuple[int, ...] = ()
    adapter_slots: Tensor | None = None


class InputBuilder:
    def __init__(
        self,
        table: RequestTable,
        placement: Placement,
        *,
        groups: Sequence[KVGroup],
        heads: HeadShape,
        windows: Sequence[int | None],
        vocab_size: int,
        max_tokens: int,
        max_drafts: int = 0,
        samples: bool = True,
        sizes: Sequence[int] = (),
    ) -> None:
        # `groups`: by block table; `windows`: by layer; `max_drafts`: of a step, each a row of its own. Without
        # `samples` (a pipeline stage before the last) no token is sampled. `sizes` ascend: decode steps are padded
        # to them, if all attention backends can.
        self._table = table
        # The last sampled token of each row: a step can be launched before the host has it.
        self.last_tokens = torch.zeros(len(table.tokens), dtype=torch.int64, device=placement.device)
        self._memory = step_memory(placement.device, *_memory_size(table, groups, max_tokens, max_drafts))
        self._on_cpu = placement.device.type == "cpu"
        self._adapters = placement.adapters
        self._block_size = groups[0].spec.block.block_size

        def planner(group: KVGroup, block_table: npt.NDArray[np.int32]) -> AttentionPlanner:
            backend = choose_backend(group.spec, heads, placement)
            of_layers = {windows[layer] for layer in group.layers}
            return backend.planner(block_table, group.spec, heads, of_layers, placement, self._memory)

        tables = zip(groups, table.block_tables, strict=True)
        self._planners = {number: planner(*each) for number, each in enumerate(tables) if each[0].layers}
        self._samples = samples
        self.sampling = SamplingInputs(table, placement, self._memory, vocab_size)
        self._padding_planners = {
            group: each for group, each in self._planners.items() if isinstance(each, PadsDecodes)
        }
        self.sizes = tuple(sizes) if len(self._padding_planners) == len(self._planners) else ()

    def build(self, scheduled: Sequence[ScheduledRow], *, is_awaited: bool = True) -> StepBatch:
        table = self._table
        chunks = chunks_of(scheduled, table)
        rows, computed, new, singles = chunks.rows, chunks.computed, chunks.new, chunks.are_single
        token_rows, positions = (rows, computed) if singles else _flat(rows, computed, new)
        blocks, offsets = np.divmod(positions, self._block_size)
        token_ids = table.tokens[token_rows, positions].astype(np.int64)
        step = StepRows(rows, computed, new, token_rows, blocks, offsets)
        samples = (computed + new >= table.num_tokens[rows]) & self._samples
        only_decodes = singles and bool(samples.all())
        size = self._size(len(rows)) if only_decodes and not table.prompt_scores else None
        self._memory.begin()
        slots = table.slots[token_rows] if table.num_adapted else None
        if self._adapters is not None and not self._adapters.on_device:
            self._adapters.begin(slots)
            slots = None
        return self._sent(
            self._tokens(token_ids, token_rows, positions, step, size, slots),
            sampled=None if only_decodes else (np.cumsum(new) - 1)[samples],
            rows=rows[samples],
            ahead=None if chunks.ahead is None else chunks.ahead[samples],
            outputs=chunks.places[samples],
            prompt_spans=tuple(prompt_spans(table, rows, computed, new, chunks.places))
            if table.prompt_scores
            else (),
            drafts=chunks.drafts,
            is_awaited=is_awaited,
        )

    def build_idle(self, size: int, *, adapted: bool = False) -> StepBatch:
        nothing = np.zeros(0, np.int64)
        step = StepRows(nothing, nothing, nothing, nothing, nothing, nothing)
        self._memory.begin()
        tokens = self._tokens(nothing, nothing, nothing, step, size, nothing if adapted else None)
        assert not self._memory.overflows, f"the memory of a step has no room for the plans of {size} decodes"
        return self._sent(
            tokens,
            sampled=None,
            rows=nothing,
            ahead=None,
            outputs=nothing,
            prompt_spans=(),
            drafts=NO_DRAFTS,
            is_awaited=True,
        )

    def _size(self, count: int) -> int | None:
        place = bisect.bisect_left(self.sizes, count)
        return self.sizes[place] if place < len(self.sizes) else None

    def _tokens(
        self,
        token_ids: Ints,
        rows: Ints,
        positions: Ints,
        step: StepRows,
        size: int | None,
        slots: Ints | None,
    ) -> _Tokens:
        # Tensors that depend on the size alone come first: their addresses recur.
        put = self._memory.put
        if size is None:
            pending = not self._on_cpu or bool((token_ids == PENDING).any())
            attention = {group: planner.plan(step) for group, planner in self._planners.items()}
            there = None if slots is None else put(slots)
            there_rows = put(rows) if pending else None
            return _Tokens(put(token_ids), there_rows, put(positions), attention, None, adapter_slots=there)
        padded = (put(_padded(numbers, size)) for numbers in (token_ids, rows, positions))
        there_tokens, there_rows, there_positions = padded
        attention = {group: planner.plan_padded(step, size) for group, planner in self._padding_planners.items()}
        there = None if slots is None else put(_padded(slots, size, -1))
        addresses = tuple(self._memory.addresses)
        return _Tokens(there_tokens, there_rows, there_positions, attention, size, addresses, there)

    def _sent(
        self,
        tokens: _Tokens,
        *,
        sampled: Ints | None,
        rows: Ints,
        ahead: Ints | None,
        outputs: Ints,
        prompt_spans: tuple[PromptSpan, ...],
        drafts: Drafts,
        is_awaited: bool,
    ) -> StepBatch:
        batch = StepBatch(
            token_ids=tokens.token_ids,
            pending_rows=tokens.pending_rows,
            positions=tokens.positions,
            attention=tokens.attention,
            sampled=None if sampled is None else self._memory.put(sampled),
            sampling=self.sampling.build(rows, ahead, is_awaited=is_awaited),
            rows=rows,
            rows_there=self._memory.put(rows),
            outputs=outputs,
            prompt_spans=prompt_spans,
            drafts=drafts,
            padded_to=tokens.size,
            addresses=tokens.addresses,
            adapter_slots=tokens.adapter_slots,
        )
        self._memory.send()
        return batch


def _flat(rows: Ints, computed: Ints, new: Ints) -> tuple[Ints, Ints]:
    return np.repeat(rows, new), np.repeat(computed, new) + places_within(new)


def _padded(numbers: Ints, size: int, rest: int = 0) -> Ints:
    """[B] → [size]"""
    if len(numbers) == size:
        return numbers
    padded = np.full(size, rest, np.int64)
    padded[: len(numbers)] = numbers
    return padded


def _memory_size(
    table: RequestTable, groups: Sequence[KVGroup], max_tokens: int, max_drafts: int
) -> tuple[int, int]:
    num_rows = len(table.tokens) + max_drafts
    of_plans = sum(_BYTES_OF_PLANS for group in groups if group.layers) * (max_tokens + num_rows)
    return (
        _SPARE_BYTES + max_tokens * _BYTES_OF_TOKEN + num_rows * _BYTES_OF_ROW + of_plans,
        table.block_tables.size // len(table.tokens) * num_rows,
    )
