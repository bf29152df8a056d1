"""The first stage of a pipeline, next to the fake executor: it must get every token before it computes it."""

from kvasir.request.tokens import from_wire
from kvasir.worker.step import ScheduledRow, StepInput


class FirstStage:
    """The rows of a worker that computes in front of the one that samples: it has the tokens that steps bring."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}

    def take(self, step: StepInput) -> list[list[int]]:
        """Return the known tokens that the step computes, by row. Called when the step is submitted."""
        for tokens in (step.sampled, step.forced):
            for request_id, token_ids in tokens.items():
                self.rows[request_id] += token_ids
        for request_id in step.finished:
            del self.rows[request_id]
        for new in step.new:
            assert new.request_id not in self.rows
            self.rows[new.request_id] = from_wire(new.tokens).tolist()
        return [self._read(scheduled) for scheduled in step.scheduled]

    def _read(self, scheduled: ScheduledRow) -> list[int]:
        start, count = scheduled.num_computed_tokens, scheduled.num_new_tokens - len(scheduled.draft_token_ids)
        tokens = self.rows[scheduled.request_id][start : start + count]
        assert len(tokens) == count, "a token is computed that the first stage does not have"
        return tokens
