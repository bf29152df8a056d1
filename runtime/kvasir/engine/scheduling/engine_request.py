"""One request inside an engine: its tokens, its KV blocks and its progress.

Ingest creates it from an AddRequest. Only the scheduler and its KVManager change it.
"""

import math
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvasir.engine.kv.block_table import BlockTable
from kvasir.engine.kv.prefix_cache import PrefixLookup
from kvasir.link.protocol import SUSPECT_TOKENS, AddRequest, FinishReason, StepRequest
from kvasir.request.hashing import BLAKE2B, chain_root
from kvasir.request.request_digest import request_digest
from kvasir.request.tokens import TOKEN_BYTES, from_wire, to_wire
from kvasir.worker.step import NewRow


class RequestStatus(IntEnum):
    """The status of a request in an engine."""

    WAITING = 0
    PREEMPTED = 1
    """Waiting again: it lost its row and blocks and keeps its tokens."""
    RUNNING = 2
    """Owns a row in the worker, and KV blocks."""
    STOPPED = 3
    """Ended at an end-of-sequence or stop token."""
    LENGTH = 4
    """Ended at max_tokens or at the context length."""
    ABORTED = 5
    """Ended without a further output."""

    finished: bool

    def __init__(self, value: int) -> None:
        # An attribute, because it is read for every token.
        self.finished = self.name in ("STOPPED", "LENGTH", "ABORTED")


FINISH_REASONS = {
    RequestStatus.STOPPED: FinishReason.STOP,
    RequestStatus.LENGTH: FinishReason.LENGTH,
}


class Guide(Protocol):
    """Which tokens may follow in the output of a request: see OutputGuide."""

    @property
    def is_free(self) -> bool:
        """Whether the next token may be any."""

    @property
    def is_complete(self) -> bool:
        """Whether the output is complete: only an end-of-sequence token may follow."""

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens of the only text that may follow, or none. Only the first of them is certain."""

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set the bits of the tokens that may follow, and clear the others. mask: [ceil(vocab / 32)]."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """Advance over tokens of the output. Raises ValueError for one that may not follow."""


class EngineRequest:
    """Prompt and output tokens are in one array: a resumed request is computed like a longer prompt.

    A step samples a token if it brings `num_computed_tokens` up to `num_tokens + num_pending`.
    """

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
        self.num_reserved_tokens: int | None = len(self.token_ids)
        """Reserved in the TokenBudget; None after their release."""
        self.arrived = time.monotonic()
        self.seniority = self.arrived - message.age if message.age > 0 else math.inf
        """When the client sent it, if another engine had it before; later than any time for a fresh request."""
        self.rank = (message.priority, self.seniority, 0)
        """(priority, seniority, arrival), the sort key: the smallest is served first. The inbox numbers the
        arrivals, and the scheduler numbers them again in the order in which it gets the requests."""
        self.kv_source = message.kv_source
        """The engine to fetch KV blocks from; "" if none is known, or after they were fetched."""
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        """Tokens whose KV is in the cache after the scheduled steps, if all drafts in flight are accepted."""
        self.num_pending = 0
        """Tokens that scheduled steps sample and that are not in `token_ids` yet; with drafts in flight, the most
        that there may be."""
        self.num_drafts = 0
        """Drafts in flight. Until their update it is not known how many tokens the request has."""
        self.block_tables: list[BlockTable] = []
        """One for each KV group; none without a row."""
        self.num_slots = 0
        """Tokens that all of its block tables have places for."""
        self.chain_root = chain_root(message.cache_salt, algorithm=hash_algorithm)
        self.block_hashes: list[bytes] = []
        """The hashes of its first full blocks; see kvasir.request.hashing."""
        self.packed_hashes = b""
        """The same hashes in one object, until they are first looked up."""
        self.lookup: PrefixLookup | None = None
        """The last look-up of its prefix in the cache while it waits. KVManager sets it."""
        self.num_known_blocks = 0
        """Blocks of each table that are in the prefix cache, or were before they were freed."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache when it was first admitted; None before."""
        self.queue_seconds: float | None = None
        """Seconds from its arrival to its first admission; None before."""
        self.first_token: float | None = None
        """When the engine sent the first token of this attempt, on the clock of `arrived`; None before."""
        self.num_preemptions = 0
        self.prompt_counted = False
        """Whether its prompt is counted in the metrics: once, with its first output, even if it is preempted."""
        digest = request_digest(message.prompt_tokens, self.core)
        self.named = StepRequest(message.request_id, digest)
        """Its name in the black box."""
        self.guide: Guide | None = None
        """Restricts its next token; None if any may follow, or before the GrammarGate has admitted it."""
        self.guide_ticket = ""
        """Its name in Grammars while it waits for its guide; "" if it needs none."""
        self.lone_until = message.num_output_tokens + SUSPECT_TOKENS if message.alone else 0
        """A step computes it alone while it has fewer output tokens; 0 unless it is a suspect."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far, including earlier attempts: the position of the next one."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_suspect(self) -> bool:
        """Whether a step that computes it must compute no other request."""
        return self.num_output_tokens < self.lone_until

    def new_row(self) -> NewRow:
        """Return the row of the request for the worker."""
        return NewRow(
            request_id=self.request_id,
            tokens=to_wire(self.token_ids),
            num_prompt_tokens=self.num_prompt_tokens,
            params=self.params,
        )
