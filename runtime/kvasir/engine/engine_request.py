"""EngineRequest: one request inside an engine."""

import math
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvasir.link.protocol import SUSPECT_TOKENS, AddRequest, FinishReason, StepRequest
from kvasir.request.hashing import BLAKE2B, chain_root, request_digest
from kvasir.request.tokens import TOKEN_BYTES, from_wire, to_wire
from kvasir.worker.step import NewRow

NULL_BLOCK: Final = 0  # fills unused places of a block table; never in the index


class PrefixLookup(NamedTuple):
    generation: tuple[int, int]  # of pool and cache: valid while neither changes
    num_tokens: int
    tables: list[list[int]]
    cost: int


class GuideError(ValueError):
    """An output token that the constraint forbids, which is a defect."""


class GrammarTooComplex(GuideError):
    """The next mask needs too much work."""


class BlockTable:
    """Block ids by place, each place for `block_size` tokens.

    | null: freed, or before the window of a cached prefix | blocks of this request |
     └────────────────────── first ──────────────────────┘
    """

    __slots__ = ("first", "ids")

    def __init__(self, ids: list[int], first: int = 0) -> None:
        self.ids = ids
        self.first = first

    @property
    def blocks(self) -> list[int]:
        return self.ids[self.first :] if self.first else self.ids

    def cut(self, first: int) -> list[int]:
        """Replace the blocks before this place by null blocks; return them."""
        freed = self.ids[self.first : first]
        self.ids[self.first : first] = [NULL_BLOCK] * len(freed)
        self.first += len(freed)
        return freed


class RequestStatus(IntEnum):
    WAITING = 0
    PREEMPTED = 1
    RUNNING = 2  # owns a row and KV blocks
    STOPPED = 3  # at an end-of-sequence or stop token
    LENGTH = 4  # at max_tokens or the context length
    ABORTED = 5

    finished: bool

    def __init__(self, value: int) -> None:
        # Not a property: it is read for every token.
        self.finished = self.name in ("STOPPED", "LENGTH", "ABORTED")


FINISH_REASONS = {
    RequestStatus.STOPPED: FinishReason.STOP,
    RequestStatus.LENGTH: FinishReason.LENGTH,
}


class Guide(Protocol):
    """Constrains the output of a request."""

    @property
    def is_free(self) -> bool:
        """Return whether any token may follow."""

    @property
    def is_complete(self) -> bool:
        """Return whether only an end-of-sequence token may follow."""

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens of the only text that may follow. Only the first is certain."""

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set the bits of allowed tokens and clear the others. mask: [ceil(vocab / 32)]."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """Advance over tokens of the output. Raises ValueError for a forbidden one."""

    def copy(self) -> "Guide":
        """Return a guide in the same state, which advances by itself."""


class EngineRequest:
    """Prompt and output tokens are in one array: a resumed request is one with a longer prompt."""

    # A step samples a token if it brings `num_computed_tokens` up to `num_tokens + num_pending`.

    __slots__ = (
        "arrived",
        "attempt",
        "block_hashes",
        "block_tables",
        "chain_root",
        "core",
        "first_token",
        "frontend",
        "guide",
        "guide_ticket",
        "kv_source",
        "lone_until",
        "lookup",
        "named",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_drafts",
        "num_known_blocks",
        "num_pending",
        "num_preemptions",
        "num_prompt_tokens",
        "num_reserved_tokens",
        "num_slots",
        "packed_hashes",
        "params",
        "prompt_counted",
        "queue_seconds",
        "rank",
        "request_id",
        "seniority",
        "slot",
        "status",
        "token_ids",
    )

    def __init__(self, frontend: str, message: AddRequest, hash_algorithm: str = BLAKE2B) -> None:
        self.frontend = frontend
        self.request_id = message.request_id
        self.attempt = message.attempt
        self.core = message.core
        self.params = self.core.params  # read for every token
        self.num_prompt_tokens = len(message.prompt_tokens) // TOKEN_BYTES
        self.token_ids = from_wire(message.prompt_tokens, message.output_tokens)
        self.num_reserved_tokens: int | None = len(self.token_ids)  # in the TokenBudget; None when released
        self.arrived = time.monotonic()
        # when the client sent it, infinite unless another engine had it before
        self.seniority = self.arrived - message.age if message.age > 0 else math.inf
        # (priority, seniority, arrival): the smallest is served first
        self.rank = (message.priority, self.seniority, 0)
        self.kv_source = message.kv_source  # the engine to fetch KV blocks from, or ""
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0  # after the scheduled steps, if all drafts are accepted
        self.num_pending = 0  # sampled by steps in flight; with drafts, the maximum
        self.num_drafts = 0  # in flight
        self.block_tables: list[BlockTable] = []  # one per KV group; empty without a row
        self.num_slots = 0  # tokens that fit into all tables
        self.chain_root = chain_root(message.cache_salt, adapter=self.core.adapter_digest, algorithm=hash_algorithm)
        self.block_hashes: list[bytes] = []
        self.packed_hashes = b""  # `block_hashes`, until the first lookup
        self.lookup: PrefixLookup | None = None  # while it waits
        self.num_known_blocks = 0  # per table: given to the prefix cache
        self.num_cached_tokens: int | None = None  # of the prompt, at first admission
        self.queue_seconds: float | None = None  # until first admission
        self.first_token: float | None = None  # time of this attempt's first token
        self.num_preemptions = 0
        self.prompt_counted = False
        digest = request_digest(message.prompt_tokens, self.core)
        self.named = StepRequest(message.request_id, digest)  # for the black box
        self.slot = -1  # of its adapter, with a row
        self.guide: Guide | None = None  # None: unrestricted, or not admitted yet
        self.guide_ticket = ""  # while its grammar compiles
        # a suspect is computed alone below this many output tokens
        self.lone_until = message.num_output_tokens + SUSPECT_TOKENS if message.alone else 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_suspect(self) -> bool:
        """Return whether a step must compute it alone."""
        return self.num_output_tokens < self.lone_until

    def new_row(self) -> NewRow:
        return NewRow(
            request_id=self.request_id,
            tokens=to_wire(self.token_ids),
            num_prompt_tokens=self.num_prompt_tokens,
            params=self.params,
            pooling=self.core.pooling,
            slot=self.slot,
        )
