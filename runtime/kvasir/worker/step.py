"""The input and the output of a step, as msgspec structs that cross process borders.

A worker receives a whole request when the request takes a row (`NewRow`), then only the changes.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingParams

# Shared by all rows without new blocks. Never change it.
NO_NEW_BLOCKS: Final[list[list[int]]] = []
# Shared by all steps that bring no tokens. Never change it.
NO_TOKENS: Final[dict[str, list[int]]] = {}
NAN_COMPUTED: Final = "NaN"
"""A cause in `StepOutput.failed`: the logits held NaN. The KV of the request may hold NaN too."""


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that takes a row, new or resumed."""

    request_id: str
    tokens: bytes
    """The prompt and the emitted tokens, as kvasir.request.tokens packs them."""
    num_prompt_tokens: int
    params: SamplingParams


class ScheduledRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a step that computes one request."""

    request_id: str
    num_computed_tokens: int
    """The number of tokens in the KV cache, which is the position of this step's first token."""
    num_new_tokens: int
    """The number of tokens to compute, with the drafts. If they reach the last known token, one is sampled."""
    new_block_ids: list[list[int]]
    """KV blocks to append to the row's block tables before the step, by KV group; or NO_NEW_BLOCKS."""
    draft_token_ids: tuple[int, ...] = ()
    """The drafts (`StepOutput.drafts`) that follow the last known token. The worker samples after each of them and
    accepts drafts up to the first that differs from the sampled token."""


class StepInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Append sampled and forced tokens, free rows, take rows, then compute the scheduled rows in a batch."""

    finished: list[str]
    """The requests whose rows are freed. A preempted and resumed request is also in `new`."""
    new: list[NewRow]
    scheduled: list[ScheduledRow]
    """Empty if the step only frees rows."""
    number: int = 0
    """Counts the steps of an engine from 1; 0 for dummy steps."""
    sampled: dict[str, list[int]] = {}
    """In a pipeline, the tokens that the last stage sampled, by request; the other stages append them. Each token
    is in one step, before its row is freed."""
    masked: tuple[int, ...] = ()
    """Indexes in `scheduled` of rows with a token mask, which a LateInput brings: it depends on tokens of the step
    before."""
    forced: dict[str, list[int]] = {}
    """Tokens that a grammar forces after the sampled ones, by request. Each is in one step, before its row is
    freed."""


class LateInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a step that is made during its forward pass and needed before sampling."""

    number: int
    masks: bytes
    """A mask for each entry of `StepInput.masked`. Bit i of its little-endian 32-bit words is set if token i is
    allowed."""


AwaitLateInput: TypeAlias = Callable[[], LateInput]
"""Waits for the late input of the current step, and returns it."""


class StepOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The results of a step. The keys of dictionaries are indexes of `token_ids`."""

    token_ids: list[list[int]]
    """For each scheduled row: nothing if the chunk ends before the last known token or the row has failed; one
    token; or the accepted drafts and one token."""
    logprobs: dict[int, Logprobs] = {}
    """Of `token_ids`, for requests that ask for them."""
    prompt_logprobs: dict[int, Logprobs] = {}
    """Of the whole prompt from its second token on, in the step that computes the last of it."""
    failed: dict[int, str] = {}
    """Why a row has no next token. The KV of the row is computed nevertheless: other requests may share it."""
    drafts: dict[int, list[int]] = {}
    """Guesses for the tokens that follow `token_ids`. The scheduler may use a prefix of them."""
