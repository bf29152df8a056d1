"""Runs one step: rows in and out of the table, the forward pass, sampling. Owned by the worker."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvasir.layers.attention import KVCache
from kvasir.models.base import CausalLM
from kvasir.sampling.sampler import sample
from kvasir.worker.inputs import InputBuilder, StepBatch
from kvasir.worker.request_table import RequestTable
from kvasir.worker.step import NO_TOKEN, StepInput, StepOutput


class ModelRunner:
    """Its inputs must be built from the table that it applies steps to."""

    def __init__(
        self, model: CausalLM, table: RequestTable, inputs: InputBuilder, caches: Sequence[KVCache]
    ) -> None:
        self._model = model
        self._table = table
        self._inputs = inputs
        self._caches = caches

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepOutput:
        table = self._table
        for request_id in step.finished:
            table.remove(request_id)
        for new in step.new:
            table.add(new)
        for row in step.scheduled:
            if row.new_block_ids:
                table.append_blocks(table.row_of(row.request_id), row.new_block_ids)
        token_ids = [NO_TOKEN] * len(step.scheduled)
        if step.scheduled:
            batch = self._inputs.build(step.scheduled)
            chosen = self._sample(batch, self._forward(batch))
            for place, token in zip(batch.outputs.tolist(), chosen, strict=True):
                token_ids[place] = token
        return StepOutput(token_ids)

    def _forward(self, batch: StepBatch) -> Tensor:
        """[T, hidden]"""
        return self._model.hidden_states(batch.token_ids, batch.positions, self._caches, batch.plan)

    def _sample(self, batch: StepBatch, hidden: Tensor) -> list[int]:
        """The next tokens of the rows that end here; only their hidden states meet the vocabulary."""
        if len(batch.rows) == 0:
            return []
        if batch.sampled is not None:
            hidden = hidden[batch.sampled]
        logits = self._model.logits(hidden)  # [R, vocab_size]
        chosen: list[int] = sample(logits, batch.random_rows).tolist()  # the one wait for the device
        self._table.append_tokens(batch.rows, np.array(chosen, np.int64))
        return chosen
