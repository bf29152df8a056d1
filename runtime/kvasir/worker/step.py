"""The input and the output of a step, sent between processes as msgspec structs."""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingParams

# Shared by all rows without new blocks. Never change it.
NO_NEW_BLOCKS: Final[list[list[int]]] = []
# Shared by all steps without tokens. Never change it.
NO_TOKENS: Final[dict[str, list[int]]] = {}
# For `StepOutput.failed`: the logits held NaN, and the request's KV may too.
NAN_COMPUTED: Final = "NaN"


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A new or resumed request that takes a row."""

    request_id: str
    # Prompt and emitted tokens, packed by kvasir.request.tokens.
    tokens: bytes
    num_prompt_tokens: int
    params: SamplingParams


class ScheduledRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    request_id: str
    # The tokens in the KV cache: the position of this step's first token.
    num_computed_tokens: int
    # With drafts. If they reach the last known token, one is sampled.
    num_new_tokens: int
    # Blocks to append before the step, by KV group; or NO_NEW_BLOCKS.
    new_block_ids: list[list[int]]
    # The worker accepts the drafts up to the first that differs from its sampled token.
    draft_token_ids: tuple[int, ...] = ()


class StepInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Append sampled and forced tokens, free rows, take rows, then compute the scheduled rows."""

    # Rows to free. A preempted and resumed request is also in `new`.
    finished: list[str]
    new: list[NewRow]
    scheduled: list[ScheduledRow]
    # From 1 in an engine; 0 for dummy steps.
    number: int = 0
    # Tokens that the last pipeline stage sampled, by request, for the other stages.
    sampled: dict[str, list[int]] = {}
    # Indexes in `scheduled` of rows whose token mask a LateInput brings.
    masked: tuple[int, ...] = ()
    # Tokens that a grammar forces after the sampled ones, by request.
    forced: dict[str, list[int]] = {}


class LateInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a step that is needed only before sampling."""

    number: int
    # By entry of `StepInput.masked`: bit i of its little-endian 32-bit words allows token i.
    masks: bytes


AwaitLateInput: TypeAlias = Callable[[], LateInput]


class StepOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The results of a step. Dictionary keys are indexes of `token_ids`."""

    # By scheduled row: no token, one token, or accepted drafts and one token.
    token_ids: list[list[int]]
    logprobs: dict[int, Logprobs] = {}
    # From the prompt's second token on, in the step that computes its last one.
    prompt_logprobs: dict[int, Logprobs] = {}
    # Causes. The KV is computed nevertheless: other requests may share it.
    failed: dict[int, str] = {}
    drafts: dict[int, list[int]] = {}
