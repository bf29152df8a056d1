"""The messages between scheduler and workers: the input and the output of a step.

A worker receives a request whole when it takes a row (`NewRow`), then only what changes. Plain msgspec structs, so
that the same step crosses a process border unchanged.
"""

from typing import Final

import msgspec

from kvasir.link.protocol import Logprobs
from kvasir.params import SamplingParams

NO_NEW_BLOCKS: Final[list[list[int]]] = []
"""Shared by all rows without new blocks, which are most of them. It must not be changed."""
NO_TOKEN = -1
"""In place of a token: nothing was sampled, because the chunk did not reach the request's last token."""
NAN_TOKEN = -2
"""In place of a token: the logits to sample from held NaN."""
FAILED_TOKEN = -3
"""The worker could not prepare the request's sampling; used whether or not a token was due."""


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that takes a row, from its start or resumed after a preemption or on another engine."""

    request_id: str
    tokens: bytes
    """Prompt and already emitted tokens, as on the link (see kvasir.tokens)."""
    num_prompt_tokens: int
    params: SamplingParams


class ScheduledRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's part of a step."""

    request_id: str
    num_computed_tokens: int
    """Tokens whose KV is in the cache: the first of this step stands at this position."""
    num_new_tokens: int
    """Tokens to compute now; where they reach the last known token, one is sampled."""
    new_block_ids: list[list[int]]
    """KV blocks to append to the row's block tables before the step: a list for each KV group. NO_NEW_BLOCKS if no
    group has any."""


class StepInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """In this order: rows are freed, rows are taken, the scheduled rows are computed in one batch."""

    finished: list[str]
    """Requests whose rows are freed: finished, aborted or preempted since the last step. A request may stand here
    and in `new` too (preempted and resumed, or an id used again)."""
    new: list[NewRow]
    scheduled: list[ScheduledRow]
    """May be empty: the step then only frees rows."""


class StepOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    token_ids: list[int]
    """One per scheduled row, in the same order; or NO_TOKEN, NAN_TOKEN or FAILED_TOKEN."""
    logprobs: dict[int, Logprobs] = {}
    """By place in `token_ids`: of the token that was sampled, where its request asks for it."""
    prompt_logprobs: dict[int, Logprobs] = {}
    """By place: of the whole prompt from its second token on, in the step that computes the last of it."""
    failed: dict[int, str] = {}
    """By place: why the row has failed. Its KV is computed all the same, because other requests may share it."""
