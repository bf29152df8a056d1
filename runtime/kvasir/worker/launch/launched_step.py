"""A step that the device computes, until its tokens are on the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvasir.link.protocol import Logprobs
from kvasir.worker.batch.drafted_rows import NAN_TOKEN, DraftedRows
from kvasir.worker.batch.request_table import PendingTokens, RequestTable
from kvasir.worker.launch.host_copy import HostCopy
from kvasir.worker.step import NAN_COMPUTED, LateInput, StepOutput


@dataclass(frozen=True)
class SampledTokens:
    copy: HostCopy
    pending: PendingTokens
    outputs: list[int]  # [R] places in the output, those with drafts more than once
    drafted: DraftedRows


class LaunchedStep:
    """A SubmittedStep. Masked rows are sampled by `supply`, others at once."""

    def __init__(self, table: RequestTable, num_rows: int, is_awaited: bool) -> None:
        # The host has the tokens before it launches the next step.
        self.is_awaited = is_awaited
        # None: nothing was sampled, or all is settled.
        self.tokens: SampledTokens | None = None
        self.awaited: Callable[[LateInput], None] | None = None
        self.failed: dict[int, str] = {}
        self.logprobs: dict[int, Logprobs] = {}
        self.prompt_logprobs: dict[int, Logprobs] = {}
        self._token_ids: list[list[int]] = [[]] * num_rows  # entries are replaced and not changed
        self._table = table

    def supply(self, late: LateInput) -> None:
        awaited, self.awaited = self.awaited, None
        if awaited is not None:
            awaited(late)

    @property
    def is_settled(self) -> bool:
        return self.awaited is None and self.tokens is None

    def done(self) -> bool:
        return self.awaited is None and (self.tokens is None or self.tokens.copy.done())

    def settle(self) -> None:
        assert self.awaited is None, "the masks of the step were not supplied"
        tokens, self.tokens = self.tokens, None
        if tokens is None:
            return
        chosen, outputs = tokens.copy.numbers(), tokens.outputs
        if tokens.drafted:
            self._settle_drafted(tokens.drafted, chosen)
            single = [place for place, output in enumerate(outputs) if output not in tokens.drafted]
            chosen, outputs = [chosen[place] for place in single], [outputs[place] for place in single]
        # The next step may have begun, so a NaN row gets some token.
        self._table.settle(tokens.pending, np.maximum(np.array(chosen, np.int64), 0))
        for output, token in zip(outputs, chosen, strict=True):
            if token == NAN_TOKEN:
                self.failed[output] = NAN_COMPUTED  # first: the scheduler must distrust the blocks
            elif output not in self.failed:
                self._token_ids[output] = [token]

    def num_sampled(self, output: int) -> int:
        # for settled rows
        return len(self._token_ids[output])

    def _settle_drafted(self, drafted: DraftedRows, chosen: Sequence[int]) -> None:
        for output, row in drafted.items():
            token_ids = row.accepted(chosen)
            if token_ids[0] == NAN_TOKEN:
                self.failed[output] = NAN_COMPUTED
            elif output not in self.failed:
                self._token_ids[output] = token_ids
                self._table.append_accepted(row.held, token_ids)

    def result(self) -> StepOutput:
        self.settle()
        return StepOutput(self._token_ids, self.logprobs, self.prompt_logprobs, self.failed)
