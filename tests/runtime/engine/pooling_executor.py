"""A fake executor of an engine that pools: checks that each row is a whole prompt, and lives for one step."""

import struct
from collections.abc import Sequence

from kvasir.request.tokens import from_wire
from kvasir.worker.step import StepInput, StepOutput
from runtime.engine.fake_executor import FakeExecutor


def fake_vector(token_ids: Sequence[int]) -> bytes:
    return struct.pack("<2f", len(token_ids), sum(token_ids))


class PoolingExecutor(FakeExecutor):
    def execute(self, step: StepInput) -> StepOutput:
        self.before_step()
        for request_id in step.finished:
            del self.rows[request_id]
        prompts = {new.request_id: from_wire(new.tokens).tolist() for new in step.new}
        for new in step.new:
            assert new.pooling is not None
            self._take_row(new)
        assert [row.request_id for row in step.scheduled] == list(prompts)
        assert sum(row.num_new_tokens for row in step.scheduled) <= self._max_num_batched_tokens
        for row in step.scheduled:
            assert (row.num_computed_tokens, row.num_new_tokens) == (0, len(prompts[row.request_id]))
            assert not any(row.new_block_ids)
        failed = {place: "injected" for place, row in enumerate(step.scheduled) if row.request_id in self.failing}
        pooled = {
            place: fake_vector(prompts[row.request_id])
            for place, row in enumerate(step.scheduled)
            if place not in failed
        }
        return StepOutput([[] for _ in step.scheduled], failed=failed, pooled=pooled)
