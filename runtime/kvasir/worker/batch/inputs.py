"""Gathers a step's tensors from the rows of the request table, once per step.

The tokens of a step stand in one flat batch, decodes first:

    | one token of each decoding row, by length of context | whole prompts, by length | chunks of longer prompts |

numpy does all work per token. The planner of each KV group plans the attention of its layers; a group without a
layer in this pipeline stage needs none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.layers.attention import AttentionPlan, AttentionPlanner, HeadShape, StepRows
from kvasir.layers.attention_backends.choose_backend import choose_backend
from kvasir.layers.kv import KVGroup
from kvasir.layers.parameter import Placement
from kvasir.worker.batch.device_rows import DeviceRows
from kvasir.worker.batch.prompt_logprobs import PromptSpan, prompt_spans
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.batch.sampling_inputs import SamplingInputs, SamplingPlan
from kvasir.worker.step import ScheduledRow

Ints = npt.NDArray[np.int64]

_PREFILL = 2**40
"""Sorts prefills after decodes: larger than every length of context."""


@dataclass(frozen=True)
class StepBatch:
    """A batch of T tokens. R of them are the last known tokens of their requests: a token is sampled after each."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    attention: Mapping[int, AttentionPlan]  # by number of the KV group
    sampled: Tensor | None  # [R] places of the tokens whose successors are sampled; None: all, in order
    sampling: SamplingPlan
    rows: Ints  # [R] rows of the request table
    outputs: Ints  # [R] places in the step's output
    prompt_spans: tuple[PromptSpan, ...]


class InputBuilder:
    """`groups` are the KV groups, one for each block table; `windows` are the sliding windows by layer. Without
    `samples` (a pipeline stage before the last) no token is sampled."""

    def __init__(
        self,
        table: RequestTable,
        placement: Placement,
        *,
        groups: Sequence[KVGroup],
        heads: HeadShape,
        windows: Sequence[int | None],
        vocab_size: int,
        samples: bool = True,
    ) -> None:
        self._table = table
        self.device_rows = DeviceRows(len(table.tokens), placement)
        self._placement = placement
        self._block_size = groups[0].spec.block.block_size

        def planner(group: KVGroup, block_table: npt.NDArray[np.int32]) -> AttentionPlanner:
            backend = choose_backend(group.spec, heads, placement)
            of_layers = {windows[layer] for layer in group.layers}
            return backend.planner(block_table, group.spec, heads, of_layers, placement)

        tables = zip(groups, table.block_tables, strict=True)
        self._planners = {number: planner(*each) for number, each in enumerate(tables) if each[0].layers}
        self._samples = samples
        self._sampling = SamplingInputs(table, placement, vocab_size)

    def build(self, scheduled: Sequence[ScheduledRow]) -> StepBatch:
        table = self._table
        count = len(scheduled)
        rows = np.fromiter((table.row_of(row.request_id) for row in scheduled), np.int64, count)
        computed = np.fromiter((row.num_computed_tokens for row in scheduled), np.int64, count)
        new = np.fromiter((row.num_new_tokens for row in scheduled), np.int64, count)
        order = np.argsort(np.where(new == 1, computed, _PREFILL * (1 + (computed > 0)) + new), kind="stable")
        rows, computed, new = rows[order], computed[order], new[order]
        ends = np.cumsum(new)
        token_rows = np.repeat(rows, new)  # [T]
        positions = np.arange(ends[-1]) + np.repeat(computed - (ends - new), new)  # [T]
        blocks, offsets = np.divmod(positions, self._block_size)
        token_ids = table.tokens[token_rows, positions].astype(np.int64)
        step = StepRows(rows, computed, new, token_rows, blocks, offsets)
        samples = (computed + new == table.num_tokens[rows]) & self._samples
        sampled_rows = rows[samples]
        decodes = int(np.count_nonzero(new == 1))
        return StepBatch(
            token_ids=self.device_rows.token_ids(token_ids, token_rows),
            positions=self._tensor(positions),
            attention={group: planner.plan(step) for group, planner in self._planners.items()},
            sampled=None if samples.all() and decodes == count else self._tensor(ends[samples] - 1),
            sampling=self._sampling.build(sampled_rows),
            rows=sampled_rows,
            outputs=order[samples],
            prompt_spans=tuple(prompt_spans(table, rows, computed, new, order)) if table.prompt_scores else (),
        )

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self._placement.device, non_blocking=True)
