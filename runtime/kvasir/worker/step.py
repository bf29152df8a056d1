"""The messages between scheduler and workers: the input and the output of a step.

A worker receives a request whole when it takes a row (`NewRow`), then only what changes. Plain msgspec structs, so
that the same step crosses a process border unchanged.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingParams

NO_NEW_BLOCKS: Final[list[list[int]]] = []
"""Shared by all rows without new blocks, which are most of them. It must not be changed."""
NO_TOKENS: Final[dict[str, list[int]]] = {}
"""Shared by all steps that bring no tokens, which are most of them. It must not be changed."""
NAN_COMPUTED: Final = "NaN"
"""In `StepOutput.failed`: the logits to sample from held NaN. The KV of the request may hold NaN too."""


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that takes a row, from its start or resumed after a preemption or on another engine."""

    request_id: str
    tokens: bytes
    """Prompt and already emitted tokens, as on the link (see kvasir.request.tokens)."""
    num_prompt_tokens: int
    params: SamplingParams


class ScheduledRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's part of a step."""

    request_id: str
    num_computed_tokens: int
    """Tokens whose KV is in the cache: the first of this step stands at this position."""
    num_new_tokens: int
    """Tokens to compute now, with the drafts; if they reach the last known token, one is sampled."""
    new_block_ids: list[list[int]]
    """KV blocks to append to the row's block tables before the step: a list for each KV group. NO_NEW_BLOCKS if no
    group has any."""
    draft_token_ids: tuple[int, ...] = ()
    """Guesses of the worker (`StepOutput.drafts`) for the tokens after the last known one, computed along with it.
    The worker samples a token after each of these places, and accepts drafts up to the first that differs from the
    token sampled for its place. Its row keeps the accepted ones and the token after them."""


class StepInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """In this order: sampled and forced tokens are appended, rows are freed, rows are taken, the scheduled rows are
    computed in one batch."""

    finished: list[str]
    """Requests whose rows are freed: finished, aborted or preempted since the last step. A request may stand here
    and in `new` too (preempted and resumed, or an id used again)."""
    new: list[NewRow]
    scheduled: list[ScheduledRow]
    """May be empty: the step then only frees rows."""
    number: int = 0
    """Counts the steps of an engine from 1; 0 before it serves (dummy steps)."""
    sampled: dict[str, list[int]] = {}
    """Tokens that earlier steps sampled, by request, if the engine is a pipeline. Its last stage has sampled them,
    the others append them to their rows. Each token is in one step, before its row is freed."""
    masked: tuple[int, ...] = ()
    """Places in `scheduled` of rows that choose from some tokens only. Their masks follow in a LateInput, because
    they depend on tokens that the step before samples."""
    forced: dict[str, list[int]] = {}
    """Tokens that follow the ones sampled last, by request, because a grammar allows no others. All stages of a
    pipeline append them to their rows. Each token is in one step, before its row is freed."""


class LateInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a step that is made while its forward pass runs. The worker needs it before it samples."""

    number: int
    """Of the step."""
    masks: bytes
    """For each place in `StepInput.masked`, in this order, a bit for each token of the vocabulary: bit i of its
    little-endian words of 32 bits is set if token i is allowed."""


AwaitLateInput: TypeAlias = Callable[[], LateInput]
"""Waits for the late input of the step that runs, and returns it."""


class StepOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Dictionaries have entries by place in `token_ids`."""

    token_ids: list[list[int]]
    """For each scheduled row, in the same order: none, if the chunk did not reach the last known token or the row
    has failed; one token; or the accepted drafts and one token."""
    logprobs: dict[int, Logprobs] = {}
    """Of `token_ids`, if the request asks for it."""
    prompt_logprobs: dict[int, Logprobs] = {}
    """Of the whole prompt from its second token on, in the step that computes the last of it."""
    failed: dict[int, str] = {}
    """Why the row has no next token: NAN_COMPUTED, or the error of preparing its sampling, which is reported even
    if no token was due. The KV of such a row is computed all the same, because other requests may share it."""
    drafts: dict[int, list[int]] = {}
    """Guesses for the tokens after `token_ids`. The scheduler may use any first part of them, or none."""
