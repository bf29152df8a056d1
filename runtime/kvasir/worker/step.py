"""The input and the output of a step, sent between processes."""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingParams
from kvasir.request.pool_params import PoolParams

# Shared. Never change it.
NO_NEW_BLOCKS: Final[list[list[int]]] = []
# Shared. Never change it.
NO_TOKENS: Final[dict[str, list[int]]] = {}
# For `StepOutput.failed`. The request's KV may hold NaN too.
NAN_COMPUTED: Final = "NaN"


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A new or resumed request."""

    request_id: str
    # Prompt and emitted tokens, packed by kvasir.request.tokens.
    tokens: bytes
    num_prompt_tokens: int
    params: SamplingParams
    # Of a request of kind POOL: its row lives for one step.
    pooling: PoolParams | None = None
    # Of its adapter; -1: none.
    slot: int = -1


class ScheduledRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    request_id: str
    # The position of this step's first token.
    num_computed_tokens: int
    # With drafts. If they reach the last known token, one is sampled.
    num_new_tokens: int
    # By KV group; or NO_NEW_BLOCKS.
    new_block_ids: list[list[int]]
    # Accepted up to the first that differs from a sampled token.
    draft_token_ids: tuple[int, ...] = ()


class StepInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Append sampled and forced tokens, free rows, take rows, then compute the scheduled rows."""

    # Rows to free. A resumed request may also be in `new`.
    finished: list[str]
    new: list[NewRow]
    scheduled: list[ScheduledRow]
    # From 1 in an engine; 0 for dummy steps.
    number: int = 0
    # By request, from the last pipeline stage.
    sampled: dict[str, list[int]] = {}
    # Indexes in `scheduled` of rows with a mask in a LateInput.
    masked: tuple[int, ...] = ()
    # By request: after the sampled tokens.
    forced: dict[str, list[int]] = {}
    # Adapters to put into slots before the rows: slot and digest.
    slots: tuple[tuple[int, str], ...] = ()


class LateInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    # By entry of `StepInput.masked`, and after each of its drafts: bit i of its little-endian 32-bit words allows
    # token i.
    masks: bytes


AwaitLateInput: TypeAlias = Callable[[], LateInput]


class StepOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Dictionary keys are indexes of `token_ids`."""

    # By scheduled row: none, one, or accepted drafts and one.
    token_ids: list[list[int]]
    logprobs: dict[int, Logprobs] = {}
    # In the step of the prompt's last token, from the second token on.
    prompt_logprobs: dict[int, Logprobs] = {}
    # The KV is computed nevertheless: other requests may share it.
    failed: dict[int, str] = {}
    # float32, little endian, at most MAX_POOLED_BYTES each.
    pooled: dict[int, bytes] = {}
