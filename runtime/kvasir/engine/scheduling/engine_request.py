"""EngineRequest: one request inside an engine. Only the scheduler and its KVManager change it."""

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
    WAITING = 0
    PREEMPTED = 1  # waits again, without row and blocks but with its tokens
    RUNNING = 2  # owns a row in the worker, and KV blocks
    STOPPED = 3  # at an end-of-sequence or stop token
    LENGTH = 4  # at max_tokens or the context length
    ABORTED = 5  # without a further output

    finished: bool

    def __init__(self, value: int) -> None:
        # An attribute, because it is read for every token.
        self.finished = self.name in ("STOPPED", "LENGTH", "ABORTED")


FINISH_REASONS = {
    RequestStatus.STOPPED: FinishReason.STOP,
    RequestStatus.LENGTH: FinishReason.LENGTH,
}


class Guide(Protocol):
    """The tokens that may follow in the output of a request: see OutputGuide."""

    @property
    def is_free(self) -> bool:
        """Whether any token may follow."""

    @property
    def is_complete(self) -> bool:
        """Whether only an end-of-sequence token may follow."""

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens of the only text that may follow, or none. Only the first is certain."""

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set the bits of the tokens that may follow and clear the others. mask: [ceil(vocab / 32)]."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """Advance over tokens of the output. Raises ValueError for one that may not follow."""


class EngineRequest:
    """A request whose prompt and output tokens are in one array, so that resuming is computing a longer prompt.

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
        self.num_reserved_tokens: int | None = len(self.token_ids)  # in the TokenBudget; None after their release
        self.arrived = time.monotonic()
        # when the client sent it, if another engine had it before; infinite for a fresh one
        self.seniority = self.arrived - message.age if message.age > 0 else math.inf
        # (priority, seniority, arrival): the smallest is served first. The inbox numbers the arrivals, and the
        # scheduler numbers them again in the order in which it gets the requests.
        self.rank = (message.priority, self.seniority, 0)
        self.kv_source = message.kv_source  # the engine to fetch KV blocks from; "": none, or already fetched
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0  # with KV after the scheduled steps, if all drafts in flight are accepted
        self.num_pending = 0  # sampled by scheduled steps and not in `token_ids`; with drafts, the maximum
        self.num_drafts = 0  # in flight
        self.block_tables: list[BlockTable] = []  # one per KV group; empty without a row
        self.num_slots = 0  # tokens that fit into all block tables
        self.chain_root = chain_root(message.cache_salt, algorithm=hash_algorithm)
        self.block_hashes: list[bytes] = []  # of the first full blocks
        self.packed_hashes = b""  # the same in one object, until the first lookup
        self.lookup: PrefixLookup | None = None  # the last lookup of its prefix while it waits
        self.num_known_blocks = 0  # of each table: in the prefix cache, or were before they were freed
        self.num_cached_tokens: int | None = None  # of the prompt, at the first admission; None before
        self.queue_seconds: float | None = None  # from arrival to first admission; None before
        self.first_token: float | None = None  # when this attempt sent its first token, on the clock of `arrived`
        self.num_preemptions = 0
        self.prompt_counted = False  # in the metrics, with the first output
        digest = request_digest(message.prompt_tokens, self.core)
        self.named = StepRequest(message.request_id, digest)  # for the black box
        self.guide: Guide | None = None  # None: any token may follow, or the GrammarGate has not admitted it yet
        self.guide_ticket = ""  # its name in Grammars while its grammar is compiled; "": none
        # a suspect is computed alone while it has fewer output tokens
        self.lone_until = message.num_output_tokens + SUSPECT_TOKENS if message.alone else 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_suspect(self) -> bool:
        """Whether a step that computes the request must compute no other."""
        return self.num_output_tokens < self.lone_until

    def new_row(self) -> NewRow:
        return NewRow(
            request_id=self.request_id,
            tokens=to_wire(self.token_ids),
            num_prompt_tokens=self.num_prompt_tokens,
            params=self.params,
        )
