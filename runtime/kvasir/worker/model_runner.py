"""Runs one step: rows in and out of the table, the forward pass, sampling. Owned by the worker.

On a pipeline stage before the last, the result of the forward pass goes to the next stage, and nothing is sampled.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvasir.layers.attention import KVCache
from kvasir.link.protocol import Logprobs
from kvasir.models.causal_lm import Generates
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.sampling.sampler import holds_nan, sample
from kvasir.sampling.token_logprobs import score
from kvasir.sampling.token_masks import TokenMasks
from kvasir.worker.batch.inputs import InputBuilder, StepBatch
from kvasir.worker.batch.prompt_logprobs import score_prompts
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.stage_link import StageLink
from kvasir.worker.step import NAN_COMPUTED, AwaitLateInput, ScheduledRow, StepInput, StepOutput

_NAN_TOKEN: Final = -1
"""Marks rows with NaN until their tokens are on the host, so that the device is waited for only once."""


class ModelRunner:
    """Its inputs must be built from the table that it applies steps to."""

    def __init__(
        self,
        model: Generates,
        table: RequestTable,
        inputs: InputBuilder,
        caches: Sequence[KVCache],
        link: StageLink,
    ) -> None:
        self._model = model
        self._table = table
        self._inputs = inputs
        self.caches = caches
        self._link = link

    @torch.inference_mode()
    def execute(self, step: StepInput, late: AwaitLateInput | None = None) -> StepOutput:
        """`late`: for a step with masked rows. It is called between the forward pass and the sampling."""
        table = self._table
        if not self._model.stage.last:
            table.append_chosen(step.sampled)
        table.append_chosen(step.forced)
        for request_id in step.finished:
            table.remove(request_id)
        for new in step.new:
            table.add(new)
        for row in step.scheduled:
            if row.new_block_ids:
                table.append_blocks(table.row_of(row.request_id), row.new_block_ids)
        return self._compute(step, late) if step.scheduled else StepOutput([])

    def _compute(self, step: StepInput, late: AwaitLateInput | None) -> StepOutput:
        batch = self._build(step.scheduled)
        computed = self._forward(batch)
        token_ids: list[list[int]] = [[]] * len(step.scheduled)  # entries are replaced and not changed
        if isinstance(computed, Intermediate):
            self._link.send(computed)
            return StepOutput(token_ids)
        hidden = computed.last
        failed = self._failed(step.scheduled) if self._table.failures else {}
        logprobs: dict[int, Logprobs] = {}
        prompt_logprobs: dict[int, Logprobs] = {}
        if len(batch.rows):
            chosen, logprobs = self._sample(batch, hidden, step.masked, late)
            for place, token in zip(batch.outputs.tolist(), chosen, strict=True):
                if token == _NAN_TOKEN:
                    failed[place] = NAN_COMPUTED  # before other causes: the scheduler must distrust the blocks
                elif place not in failed:
                    token_ids[place] = [token]
        if batch.prompt_spans:
            prompt_logprobs = score_prompts(batch.prompt_spans, hidden, self._model.logits, self._table)
        return StepOutput(token_ids, logprobs, prompt_logprobs, failed)

    def _build(self, scheduled: Sequence[ScheduledRow]) -> StepBatch:
        """Build the step's inputs; rows whose inputs cannot be built become failed rows."""
        try:
            return self._inputs.build(scheduled)
        except Exception:
            for row in scheduled:
                self._check_alone(row)
        return self._inputs.build(scheduled)  # raises again if no single request is the cause

    def _check_alone(self, row: ScheduledRow) -> None:
        try:
            self._inputs.build([row])
        except Exception as error:
            self._table.fail(row.request_id, error)

    def _failed(self, scheduled: Sequence[ScheduledRow]) -> dict[int, str]:
        """Return why rows have failed, by place in the step's output."""
        rows = [self._table.row_of(row.request_id) for row in scheduled]
        failures = self._table.failures
        return {place: failures[row] for place, row in enumerate(rows) if row in failures}

    def _forward(self, batch: StepBatch) -> Hidden | Intermediate:
        arrived = self._link.receive(len(batch.token_ids))
        return self._model.forward(
            ForwardBatch(batch.token_ids, batch.positions, batch.attention, self.caches, arrived)
        )

    def _masks(
        self, batch: StepBatch, logits: Tensor, masked: Sequence[int], late: AwaitLateInput | None
    ) -> TokenMasks:
        """Wait for the masks of these places of the step. The device computes the logits [R, V] meanwhile."""
        assert late is not None, "masked rows need a late input"
        row_of = {place: row for row, place in enumerate(batch.outputs.tolist())}
        return TokenMasks.unpack(late().masks, [row_of[place] for place in masked], logits.shape[1], logits.device)

    def _sample(
        self, batch: StepBatch, hidden: Tensor, masked: Sequence[int], late: AwaitLateInput | None
    ) -> tuple[list[int], dict[int, Logprobs]]:
        """Return the next tokens of the sampled rows, and log probabilities by place in the step's output.

        Logits are computed for these rows only. `masked`: places in the step of rows with a mask.
        """
        if batch.sampled is not None:
            hidden = hidden[batch.sampled]
        plan = batch.sampling
        logits = self._model.logits(hidden)  # [R, vocab_size]
        raw = None if plan.logprobs is None else logits[plan.logprobs.rows]  # [P, vocab_size], a copy
        logits = logits.float()
        if masked:
            self._masks(batch, logits, masked, late).apply_(logits, plan.changes)
        elif plan.changes is not None:
            plan.changes.apply_(logits)
        tokens = sample(logits, plan.random_rows)  # [R]
        marked = tokens.masked_fill(holds_nan(logits, tokens), _NAN_TOKEN)
        chosen: list[int] = marked.tolist()  # the only wait for the device, unless log probabilities are reported
        # A row whose logits hold NaN may be part of the next step already: it goes on with some token.
        self._table.append_tokens(batch.rows, np.maximum(np.array(chosen, np.int64), 0))
        if plan.logprobs is None or raw is None:
            return chosen, {}
        scores = score(raw, tokens[plan.logprobs.rows], max(plan.logprobs.counts))
        outputs = batch.outputs[plan.logprobs.places].tolist()
        wanted = enumerate(zip(outputs, plan.logprobs.counts, strict=True))
        return chosen, {output: scores.wire(index, index + 1, k) for index, (output, k) in wanted}
