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
# A cause in `StepOutput.failed`: the logits held NaN, and the KV of the request may too.
NAN_COMPUTED: Final = "NaN"


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that takes a row, new or resumed."""

    request_id: str
    tokens: bytes
    """The prompt and the emitted tokens, packed by kvasir.request.tokens."""
    num_prompt_tokens: int
    params: SamplingParams


class ScheduledRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a step that computes one request."""

    request_id: str
    num_computed_tokens: int
    """The tokens in the KV cache: the position of this step's first token."""
    # With drafts. If they reach the last known token, one is sampled.
    num_new_tokens: int
    new_block_ids: list[list[int]]
    """Blocks to append to the row's block tables before the step, by KV group; or NO_NEW_BLOCKS."""
    draft_token_ids: tuple[int, ...] = ()
    """Guesses for the tokens after the last known one. The worker accepts them up to the first that differs from
    the token that it samples."""


class StepInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Append sampled and forced tokens, free rows, take rows, then compute the scheduled rows in a batch."""

    finished: list[str]
    """Rows to free. A preempted and resumed request is also in `new`."""
    new: list[NewRow]
    scheduled: list[ScheduledRow]
    # From 1 in an engine; 0 for dummy steps.
    number: int = 0
    # In a pipeline, the tokens that the last stage sampled, by request, for the other stages.
    sampled: dict[str, list[int]] = {}
    masked: tuple[int, ...] = ()
    """Indexes in `scheduled` of rows with a token mask, which a LateInput brings."""
    forced: dict[str, list[int]] = {}
    """Tokens that a grammar forces after the sampled ones, by request."""


class LateInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a step that is made during its forward pass and needed before sampling."""

    number: int
    # For each entry of `StepInput.masked`: bit i of its little-endian 32-bit words is set if token i is allowed.
    masks: bytes


AwaitLateInput: TypeAlias = Callable[[], LateInput]


class StepOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The results of a step. The keys of dictionaries are indexes of `token_ids`."""

    # By scheduled row: none; or one token; or accepted drafts and one token.
    token_ids: list[list[int]]
    logprobs: dict[int, Logprobs] = {}
    # Of the whole prompt from its second token on, in the step that computes the last of it.
    prompt_logprobs: dict[int, Logprobs] = {}
    failed: dict[int, str] = {}
    """Why a row has no next token. Its KV is computed nevertheless: other requests may share it."""
    drafts: dict[int, list[int]] = {}
    """Guesses for the tokens after `token_ids`. The scheduler may use a prefix of them."""
