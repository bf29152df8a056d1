"""One fixed row per running request: tokens, block tables and sampling parameters."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_type_hints

import numpy as np
import numpy.typing as npt

from kvasir.request.params import SamplingParams
from kvasir.sampling.logit_rules import LogitRules, has_rules
from kvasir.sampling.token_logprobs import PromptScores
from kvasir.worker.step import NewRow

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]

# The host does not have the token yet.
PENDING: Final = -1

_NUMBERS = np.dtype(
    [
        (name, np.int64 if kind is int else np.float64)
        for name, kind in get_type_hints(SamplingParams).items()
        if kind in (int, float)
    ]
)


@dataclass(frozen=True)
class PendingTokens:
    rows: Ints  # [R] in the table
    places: Ints  # [R] in the tokens of a row
    epochs: Ints  # [R]: a row may be freed before its token is known


@dataclass(frozen=True)
class HeldRow:
    row: int
    epoch: int  # the row may be freed meanwhile


class RequestTable:
    """Free rows hold old values. Rare options are dictionaries by row."""

    def __init__(
        self,
        rows: int,
        max_model_len: int,
        block_size: int,
        *,
        kv_groups: int = 1,
        eos_token_ids: Sequence[int] = (),
        samples: bool = True,
    ) -> None:
        self._row_of: dict[str, int] = {}
        self._free = list(reversed(range(rows)))
        self._epochs: Ints = np.zeros(rows, np.int64)
        # Untouched pages of np.zeros take no memory. The last sampled token is never computed, so it takes one
        # column more.
        self.tokens: npt.NDArray[np.int32] = np.zeros((rows, max_model_len + 1), np.int32)
        # With a pending token.
        self.num_tokens: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.num_prompt_tokens: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        blocks = -(-max_model_len // block_size)
        # [groups, rows, blocks]. Null blocks follow a row's blocks and replace those behind a window.
        self.block_tables: npt.NDArray[np.int32] = np.zeros((kv_groups, rows, blocks), np.int32)
        self.num_blocks: npt.NDArray[np.int64] = np.zeros((kv_groups, rows), np.int64)
        self.slots: npt.NDArray[np.int64] = np.full(rows, -1)  # of adapters; -1: none
        self.num_adapted = 0
        self.greedy: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        # The numeric ones: `params["top_p"]` has one for each row.
        self.params: npt.NDArray[np.void] = np.zeros(rows, _NUMBERS)
        self.rules: dict[int, LogitRules] = {}
        self.num_logprobs: dict[int, int] = {}
        self.prompt_scores: dict[int, PromptScores] = {}
        self.failures: dict[int, str] = {}
        self._eos_token_ids = tuple(eos_token_ids)
        self._samples = samples

    def __len__(self) -> int:
        return len(self._row_of)

    def row_of(self, request_id: str) -> int:
        return self._row_of[request_id]

    def add(self, new: NewRow) -> None:
        row = self._free.pop()
        assert new.request_id not in self._row_of, f"request {new.request_id} has a row already"
        self._row_of[new.request_id] = row
        token_ids = np.frombuffer(new.tokens, "<u4")
        count = len(token_ids)
        self.tokens[row, :count] = token_ids
        self.num_tokens[row] = count
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        self.slots[row] = new.slot
        self.num_adapted += new.slot >= 0
        if not self._samples:
            return
        try:
            self._add_params(row, new.params)
        except Exception as error:
            self.fail(new.request_id, error)

    def fail(self, request_id: str, error: Exception) -> None:
        # Computed as greedy until the scheduler frees it: other requests may share its KV.
        log.error("request %s ends with an error: its sampling cannot be prepared", request_id, exc_info=error)
        row = self._row_of[request_id]
        self._drop_options(row)
        self.greedy[row] = True
        self.failures[row] = f"{type(error).__name__}: {error}"

    def _add_params(self, row: int, params: SamplingParams) -> None:
        self.greedy[row] = params.greedy
        self.params[row] = tuple(getattr(params, name) for name in _NUMBERS.names or ())
        if has_rules(params):
            self.rules[row] = LogitRules(params, int(self.num_prompt_tokens[row]), self._eos_token_ids)
        if params.logprobs is not None:
            self.num_logprobs[row] = params.logprobs
        # Else the request is resumed: its prompt has been reported.
        if params.prompt_logprobs is not None and self.num_tokens[row] == self.num_prompt_tokens[row]:
            self.prompt_scores[row] = PromptScores(params.prompt_logprobs)

    def tokens_of(self, row: int, ahead: int = 0) -> npt.NDArray[np.int32]:
        """Return a view [num_tokens + ahead], with PENDING for pending tokens and drafts at the end."""
        return self.tokens[row, : self.num_tokens[row] + ahead]

    def write_drafts(self, row: int, token_ids: Sequence[int]) -> None:
        start = int(self.num_tokens[row])
        self.tokens[row, start : start + len(token_ids)] = token_ids

    def remove(self, request_id: str) -> None:
        row = self._row_of.pop(request_id)
        self._drop_options(row)
        self._epochs[row] += 1
        self.num_adapted -= bool(self.slots[row] >= 0)
        self.slots[row] = -1
        self.failures.pop(row, None)
        self.block_tables[:, row, : self.num_blocks[:, row].max()] = 0
        self.num_blocks[:, row] = 0
        self._free.append(row)

    def _drop_options(self, row: int) -> None:
        for option in (self.rules, self.num_logprobs, self.prompt_scores):
            option.pop(row, None)

    def append_blocks(self, row: int, new_block_ids: Sequence[list[int]]) -> None:
        for group, block_ids in enumerate(new_block_ids):
            start = int(self.num_blocks[group, row])
            end = start + len(block_ids)
            self.block_tables[group, row, start:end] = block_ids
            self.num_blocks[group, row] = end

    def append_chosen(self, tokens: Mapping[str, Sequence[int]]) -> None:
        for request_id, token_ids in tokens.items():
            row = self._row_of[request_id]
            start = int(self.num_tokens[row])
            end = start + len(token_ids)
            self.tokens[row, start:end] = token_ids
            self.num_tokens[row] = end

    def append_pending(self, rows: Ints) -> PendingTokens:
        places = self.num_tokens[rows]
        self.tokens[rows, places] = PENDING
        self.num_tokens[rows] = places + 1
        return PendingTokens(rows, places, self._epochs[rows])

    def held(self, row: int) -> "HeldRow":
        return HeldRow(row, int(self._epochs[row]))

    def append_accepted(self, held: "HeldRow", token_ids: Sequence[int]) -> None:
        """Append drafts that were accepted and one more token. Skip a row that was freed meanwhile."""
        if self._epochs[held.row] == held.epoch:
            self.write_drafts(held.row, token_ids)
            self.num_tokens[held.row] += len(token_ids)

    def settle(self, pending: PendingTokens, token_ids: Ints) -> None:
        """Write the tokens [R]. Skip rows that were freed meanwhile."""
        rows, places = pending.rows, pending.places
        held = self._epochs[rows] == pending.epochs
        if not held.all():
            rows, places, token_ids = rows[held], places[held], token_ids[held]
        self.tokens[rows, places] = token_ids
