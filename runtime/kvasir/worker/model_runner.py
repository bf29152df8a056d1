"""Runs one step: rows in and out of the table, the forward pass, sampling.

The host waits for a step's tokens only to take a result, for bad words, and for log probabilities.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kvasir.layers.adapter_slots import AdapterSlots
from kvasir.layers.attention import KVCache
from kvasir.models.causal_lm import Generates, KeepsRequests
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.sampling.sampler import holds_nan, sample
from kvasir.sampling.token_logprobs import Scores, score
from kvasir.sampling.token_masks import PackedMasks, TokenMasks, masks_for
from kvasir.worker.adapters.adapter_store import AdapterStore
from kvasir.worker.batch.drafted_rows import NAN_TOKEN, NO_DRAFTED_ROWS, drafted_rows
from kvasir.worker.batch.inputs import InputBuilder, StepBatch
from kvasir.worker.batch.prompt_logprobs import score_prompts
from kvasir.worker.batch.request_table import PENDING, RequestTable
from kvasir.worker.launch.decode_graphs import DecodeGraphs, Recorder
from kvasir.worker.launch.host_copy import HostCopies
from kvasir.worker.launch.launched_step import LaunchedStep, SampledTokens
from kvasir.worker.profiler import phase
from kvasir.worker.stage_link import StageLink
from kvasir.worker.step import AwaitLateInput, LateInput, ScheduledRow, StepInput, StepOutput


class ModelRunner:
    """Without a `recorder` there are no CUDA graphs."""

    def __init__(
        self,
        model: Generates,
        table: RequestTable,
        inputs: InputBuilder,
        caches: Sequence[KVCache],
        link: StageLink,
        copies: HostCopies,
        recorder: Recorder | None = None,
        adapters: AdapterStore | None = None,
        slots: AdapterSlots | None = None,
    ) -> None:
        self._model = model
        self._table = table
        self._inputs = inputs
        self.caches = caches
        self._link = link
        self._copies = copies
        self._adapters = adapters
        self._slots = slots if slots is not None and slots.on_device else None
        self._graphs = DecodeGraphs(recorder) if recorder is not None else None
        self._launched: list[LaunchedStep] = []
        self._forget = model.forget if isinstance(model, KeepsRequests) else None

    @torch.inference_mode()
    def execute(self, step: StepInput, late: AwaitLateInput | None = None) -> StepOutput:
        # `late` is called after the forward pass, if rows are masked.
        launched = self._launch(step, is_awaited=True)
        if launched.awaited is not None:
            assert late is not None, "masked rows need a late input"
            launched.supply(late())
        return launched.result()

    @torch.inference_mode()
    def launch(self, step: StepInput) -> LaunchedStep:
        return self._launch(step, is_awaited=False)

    def _launch(self, step: StepInput, *, is_awaited: bool) -> LaunchedStep:
        # is_awaited: the host has the tokens before it launches the next step.
        table = self._table
        # Both steps' sampling parameters have the same memory.
        assert not any(each.awaited for each in self._launched), "a step before still waits for its masks"
        if step.slots:
            assert self._adapters is not None, "this worker takes no adapters"
            self._adapters.place(step.slots)
        if step.forced:
            self._settle()
        if not self._model.stage.last:
            table.append_chosen(step.sampled)
        table.append_chosen(step.forced)
        for request_id in step.finished:
            number = table.row_of(request_id)
            self._inputs.sampling.device_counts.remove(number)
            if self._forget is not None:
                self._forget(number)
            table.remove(request_id)
        for new in step.new:
            table.add(new)
        for row in step.scheduled:
            if row.new_block_ids:
                table.append_blocks(table.row_of(row.request_id), row.new_block_ids)
        launched = LaunchedStep(table, len(step.scheduled), is_awaited)
        if step.scheduled:
            self._compute(step, launched)
        if not is_awaited:
            self._launched = [each for each in (*self._launched, launched) if not each.is_settled]
        return launched

    @torch.inference_mode()
    def capture_graphs(self, sizes: Sequence[int]) -> None:
        assert self._graphs is not None, "the runner was made without a recorder"
        for size in reversed(sizes):
            self._graphs.capture(self._inputs.build_idle(size), self._decode_logits)
            if self._slots is not None:
                self._graphs.capture(self._inputs.build_idle(size, adapted=True), self._decode_logits)

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        return () if self._graphs is None else self._inputs.sizes

    def _settle(self) -> None:
        for launched in self._launched:
            launched.settle()

    def _compute(self, step: StepInput, launched: LaunchedStep) -> None:
        is_awaited = launched.is_awaited
        rows = (self._table.row_of(row.request_id) for row in step.scheduled)
        if self._launched and self._inputs.sampling.need_tokens(rows, is_awaited=is_awaited):
            self._settle()
        with phase("inputs"):
            batch = self._build(step.scheduled, is_awaited)
        if self._table.failures:
            launched.failed = self._failed(step.scheduled)
        logits = self._logits(batch, launched)
        if logits is None:
            return
        if step.masked:
            launched.awaited = partial(self._sample_masked, launched, batch, logits, step.masked)
        else:
            with phase("sample"):
                self._sample(launched, batch, logits)

    def _logits(self, batch: StepBatch, launched: LaunchedStep) -> Tensor | None:
        # [R, vocab_size]
        if batch.padded_to is not None and self._graphs is not None:
            with phase("forward"):
                return self._graphs.logits(batch, self._decode_logits)
        with phase("forward"):
            computed = self._forward(batch)
        if isinstance(computed, Intermediate):
            self._link.send(computed)
            return None
        hidden = computed.last
        if batch.prompt_spans:
            launched.prompt_logprobs = score_prompts(batch.prompt_spans, hidden, self._model.logits, self._table)
        if not len(batch.rows):
            return None
        with phase("logits"):
            return self._model.logits(hidden if batch.sampled is None else hidden[batch.sampled])

    def _build(self, scheduled: Sequence[ScheduledRow], is_awaited: bool) -> StepBatch:
        try:
            return self._inputs.build(scheduled, is_awaited=is_awaited)
        except Exception:
            for row in scheduled:
                self._check_alone(row, is_awaited)
        # Raises again if no single request is the cause.
        return self._inputs.build(scheduled, is_awaited=is_awaited)

    def _check_alone(self, row: ScheduledRow, is_awaited: bool) -> None:
        try:
            self._inputs.build([row], is_awaited=is_awaited)
        except Exception as error:
            self._table.fail(row.request_id, error)

    def _failed(self, scheduled: Sequence[ScheduledRow]) -> dict[int, str]:
        rows = [self._table.row_of(row.request_id) for row in scheduled]
        failures = self._table.failures
        return {place: failures[row] for place, row in enumerate(rows) if row in failures}

    def _forward(self, batch: StepBatch) -> Hidden | Intermediate:
        if self._slots is not None:
            self._slots.begin_forward(batch.adapter_slots)
        arrived = self._link.receive(len(batch.token_ids))
        token_ids = batch.token_ids
        if batch.pending_rows is not None:
            token_ids = torch.where(token_ids == PENDING, self._inputs.last_tokens[batch.pending_rows], token_ids)
        return self._model.forward(ForwardBatch(token_ids, batch.positions, batch.attention, self.caches, arrived))

    def _decode_logits(self, batch: StepBatch) -> Tensor:
        computed = self._forward(batch)
        assert isinstance(computed, Hidden), "a stage before the last has no graphs"
        return self._model.logits(computed.last)

    @torch.inference_mode()
    def _sample_masked(
        self, launched: LaunchedStep, batch: StepBatch, logits: Tensor, masked: Sequence[int], late: LateInput
    ) -> None:
        rows_of: dict[int, list[int]] = {place: [] for place in masked}
        for row, place in enumerate(batch.outputs.tolist()):
            if place in rows_of:
                rows_of[place].append(row)  # with drafts, more than one
        rows = [row for place in masked for row in rows_of[place]]
        masks = masks_for(late.masks, rows, logits.shape[1], logits.device)
        with phase("sample"):
            self._sample(launched, batch, logits, masks)

    def _sample(
        self,
        launched: LaunchedStep,
        batch: StepBatch,
        logits: Tensor,
        masks: TokenMasks | PackedMasks | None = None,
    ) -> None:
        plan = batch.sampling
        raw = None if plan.logprobs is None else logits[plan.logprobs.rows]  # [P, vocab_size], a copy
        if masks is not None:
            logits = logits.float()
            masks.apply_(logits, plan.changes)
        elif plan.changes is not None:
            logits = logits.float()
            plan.changes.apply_(logits)
        tokens = sample(logits, plan.random_rows)  # [R]
        self._inputs.sampling.sampled(plan, tokens)
        if not launched.is_awaited:
            self._inputs.last_tokens[batch.rows_there] = tokens
        marked = tokens.masked_fill(holds_nan(logits, tokens), NAN_TOKEN)
        outputs = batch.outputs.tolist()
        drafted, single = NO_DRAFTED_ROWS, batch.rows
        if batch.drafts:
            drafted = drafted_rows(batch.drafts, batch.rows.tolist(), outputs, self._table)
            single = batch.rows[[output not in drafted for output in outputs]]
        pending = self._table.append_pending(single)
        launched.tokens = SampledTokens(self._copies.start(marked), pending, outputs, drafted)
        if plan.logprobs is not None and raw is not None:  # waits for the device
            scores = score(raw, tokens[plan.logprobs.rows], max(plan.logprobs.counts))
            self._report(launched, [outputs[place] for place in plan.logprobs.places], plan.logprobs.counts, scores)

    def _report(
        self, launched: LaunchedStep, outputs: Sequence[int], counts: Sequence[int], scores: Scores
    ) -> None:
        # outputs [P], counts [P]; the places of a row with drafts are neighbours
        drafted = () if launched.tokens is None else launched.tokens.drafted
        if drafted:
            launched.settle()
        for place, (output, k) in enumerate(zip(outputs, counts, strict=True)):
            if output not in launched.logprobs:
                sampled = launched.num_sampled(output) if output in drafted else 1
                launched.logprobs[output] = scores.wire(place, place + sampled, k)
