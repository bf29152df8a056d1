"""Every message between frontend and engine, as msgspec structs in msgpack: one struct per ZMQ message.

The order: Hello (until answered) → Welcome or Refused → Hello again for each phase → Ready → AddRequest / Abort and
Outputs → Draining → Goodbye, or Dead. Both ends send heartbeats. A Hello after Ready starts over: the engine took
the frontend for lost and has dropped its requests. A request before Ready is refused as UNAVAILABLE; one that
crosses Draining is still served. Fields are only appended, with defaults: docs/design/changing-the-wire.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from kvasir.request.adapter import Adapter
from kvasir.request.constraint import OutputConstraint
from kvasir.request.hashing import BLAKE2B
from kvasir.request.params import SamplingParams
from kvasir.request.pool_params import PoolParams
from kvasir.request.request_core import RequestCore, RequestKind
from kvasir.request.tokens import TOKEN_BYTES
from kvasir_contract.phases import Phase

PROTOCOL_VERSION: Final = 2
OLDEST_PROTOCOL: Final = 1  # PROTOCOL_VERSION - 1 once there has been one

FEATURE_PREFIX_CACHE: Final = "prefix-cache"  # the engine looks AddRequest.block_hashes up
FEATURE_PRIORITY: Final = "priority"  # other engines refuse a request with AddRequest.priority
FEATURE_LORA: Final = "lora"  # other engines reject a request with AddRequest.adapter
FEATURE_WAVES: Final = "waves"  # the engine steps together with the others that have this feature


# A suspect is computed alone up to the token with which its engine failed. Two steps overlap, so the engine may
# have failed before it could send its last two tokens.
SUSPECT_TOKENS: Final = 3

_PHASES: Final = {phase.value: phase for phase in Phase}


class ProtocolError(ValueError):
    """A frame that is not one of the messages expected from this side."""


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"  # `max_tokens` or the model's context is reached
    ABORT = "abort"
    ERROR = "error"

    @classmethod
    def _missing_(cls, value: object) -> "FinishReason":
        # A later version has added the reason; the output is complete.
        return cls.STOP


class RefusalKind(StrEnum):
    """Why an engine rejects a request, or gives it back."""

    INVALID = "invalid"  # no engine can compute it (HTTP 400)
    OVERLOADED = "overloaded"  # the engine has reached a bound; it can take the request later (HTTP 429)
    UNAVAILABLE = "unavailable"  # the engine is not ready or stops; another engine can take the request (HTTP 503)
    # The engine has not got the request's adapter. Another engine may hold it.
    ADAPTER_UNFIT = "adapter-unfit"  # it cannot be used (HTTP 400)
    ADAPTER_UNREAD = "adapter-unread"  # it could not be fetched or read (HTTP 503)
    UNKNOWN = "unknown"  # a kind that a later version has added (HTTP 500)

    @classmethod
    def _missing_(cls, value: object) -> "RefusalKind":
        return cls.UNKNOWN


class Progress(msgspec.Struct, frozen=True, array_like=True):
    done: int  # bytes loaded
    total: int


class DraftStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    drafts: int  # how often a request had some in a step
    tokens: int  # in them
    accepted: tuple[int, ...]  # tokens by place


class EngineStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    waiting: int  # requests without a row, preempted ones included
    running: int  # requests with a row
    kv_blocks_used: int
    step: int  # steps since the start; so count the next two
    preemptions: int = 0
    corrupted: int = 0  # requests whose logits were not numbers
    # Prompt tokens of requests with a row that are not computed yet. Without a row, the cached part is not known.
    unfinished_tokens: int = 0
    drafts: DraftStats | None = None  # since the start; None: without speculation


class StepRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    request_id: str
    digest: bytes  # see kvasir.request.hashing


class FailedStep(msgspec.Struct, frozen=True, array_like=True):
    """The requests of all steps in flight when an engine failed or got stuck, without those that only waited."""

    incarnation: str
    requests: tuple[StepRequest, ...] = ()


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# ------------------------------------------------------------------------------------------ engine → frontend


class Hello(_Message, frozen=True):
    """Introduces the engine or reports a new phase; repeated until it is answered."""

    protocol: int
    service: str  # UID of the InferenceService, "" if none was given
    incarnation: str  # rank and a fresh id; also the ZMQ identity
    rank: int
    node: str
    version: str
    fingerprint: str  # hash of config.json and the weights' index, see kvasir.hub
    tokenizer_hash: str
    phase_name: str
    progress: Progress | None = None
    # The step in which the engine before this one ended, with incarnation "" if there was none. None: no black box.
    crashed: FailedStep | None = None

    @property
    def phase(self) -> Phase:
        # Only Ready makes an engine usable, so an unknown phase of a later version may count as STARTING.
        return _PHASES.get(self.phase_name, Phase.STARTING)


class Ready(_Message, frozen=True):
    """The engine takes requests from now on."""

    block_size: int  # tokens per KV block
    num_blocks: int  # KV blocks for requests
    max_model_len: int  # tokens, prompt and output together
    max_num_seqs: int
    features: tuple[str, ...] = ()  # FEATURE_…
    max_queued_tokens: int = 0  # Tokens of waiting requests; more are refused as OVERLOADED. 0: not announced.
    hash_algorithm: str = BLAKE2B  # Hashes of another algorithm (request/hashing.py) do not fit its prompts.
    # Engines of one class continue each other's requests exactly (kvasir.engine.build). "": unknown.
    numerics: str = ""
    # Tokens per step. 0: not announced, or prompts are computed in parts, so that a long one delays no other.
    max_num_batched_tokens: int = 0
    kv_address: str = ""  # where engines of the class fetch KV blocks from this one; "" if they cannot
    # An answer continues only on engines with the same weights (kvasir.hub.weights_identity). "": unknown.
    weights: str = ""
    max_loras: int = 0  # adapters in a step; 0: none, or not announced
    max_lora_rank: int = 0


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log probabilities before penalties, bias and temperature (raw_logprobs in vLLM), one entry per token.

    `top_*` hold the k most likely tokens at the place of the token, the most likely first.
    """

    token: list[float]
    rank: list[int]  # number of tokens that are at least as likely; 1 for the most likely one
    top_ids: list[list[int]]
    top: list[list[float]]


class RequestProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The history of a request in an engine. A struct of its own, because most outputs have none."""

    num_preemptions: int = 0  # in this attempt
    # from the end of `RequestOutput.queue_seconds` to the first token; with the first output
    prefill_seconds: float | None = None
    decode_seconds: float | None = None  # from the first token to the last; with the last output


class RequestOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    request_id: str
    attempt: int
    # Output tokens emitted before `token_ids`. A gap or an overlap means that the engine is not trusted.
    position: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    # the one of `SamplingParams.stop_token_ids` that ended it; None for an end-of-sequence token
    stop_token_id: int | None = None
    error: str = ""  # with FinishReason.ERROR: why, for the client to read
    logprobs: Logprobs | None = None  # of `token_ids`
    prompt_logprobs: Logprobs | None = None  # of the prompt's tokens from the second on; with the first output
    # prompt tokens found in the prefix cache; with the first output of an attempt
    num_cached_tokens: int | None = None
    queue_seconds: float | None = None  # time until the request first had a row; with `num_cached_tokens`
    refusal: RefusalKind | None = None  # with FinishReason.ERROR; None if the engine tried to compute it and failed
    # with the first and the last output of an attempt; with all of them after a preemption
    progress: RequestProgress | None = None
    pooled: bytes | None = None  # the vector of a request of kind POOL: float32, little endian


class Outputs(_Message, frozen=True):
    """All results of one step for one frontend."""

    outputs: list[RequestOutput]
    stats: EngineStats


class Draining(_Message, frozen=True):
    """Ends the flow of new requests; running ones are finished within the drain timeout.

    The frontend answers with Heartbeat.saw_draining after its last AddRequest. The engine serves requests that came
    before, unless the frontend has sent them elsewhere and aborts them here.
    """

    seconds: float = 0.0  # until the engine gives back the rest; 0 if at once or not announced


class Dead(_Message, frozen=True):
    """The engine failed and ends: all its requests are lost."""

    reason: str
    crashed: FailedStep | None = None  # the step in which it failed; None from version 1


class CacheEvents(_Message, frozen=True):
    """Changes of the prefix cache, for a frontend with Welcome.cache_events. A hash has 16 bytes.

    The first messages carry the hashes that the cache held before, in parts; the order of the messages matters.
    """

    sequence: int  # counts up for each frontend; 0 begins a snapshot that replaces earlier messages
    stored: bytes = b""  # now in the cache; some may have been reported before
    evicted: bytes = b""  # no longer in the cache, and none of them is in `stored`
    reset: bool = False  # all hashes of earlier messages were evicted


class AdaptersHeld(_Message, frozen=True):
    """The adapters in the engine's memory, for routing: sent after Ready and for each change."""

    adapters: tuple[Adapter, ...] = ()  # all of them, the most recently used last


class Result(_Message, frozen=True):
    id: int
    error: str = ""  # why it failed; "" if it did not
    values: list[str] = []  # one per worker
    value: bytes = b""  # the struct of the method, in msgpack; empty: none


# ------------------------------------------------------------------------------------------ frontend → engine


class Welcome(_Message, frozen=True):
    """The engine is accepted; sent for each Hello."""

    protocol: int
    frontend: str  # its incarnation: an engine drops the requests of an earlier one
    cache_events: bool = False  # it needs CacheEvents


class Refused(_Message, frozen=True):
    reason: str  # for the engine's log and status
    # True: this incarnation is not known (any more): drop its requests and send Hello again. False: the engine does
    # not fit (model, protocol or service).
    retry: bool
    frontend: str = ""  # its incarnation


class AddRequest(_Message, frozen=True):
    """Compute this request, from its start or from where an earlier attempt stood."""

    request_id: str  # unique over all frontends
    attempt: int  # increases each time an engine gets the request; outputs of older attempts are dropped
    prompt_tokens: bytes  # 4 per token, little endian
    output_tokens: bytes  # of earlier attempts: computed like the prompt, counted as output
    params: SamplingParams
    block_hashes: bytes = b""  # 16 per full block, chained (request/hashing.py); empty: the engine hashes it
    priority: int = 0  # see RequestCore; without FEATURE_PRIORITY only 0 is accepted
    cache_salt: str = ""  # starts the chain of `block_hashes`
    age: float = 0.0  # seconds since the request came, for one that another engine had; the oldest is served first
    alone: bool = False  # suspected: compute SUSPECT_TOKENS tokens in steps without other requests
    kv_source: str = ""  # the Ready.kv_address of an engine that may have the KV blocks
    constraint: OutputConstraint | None = None  # for the whole output, with the emitted tokens
    kind: RequestKind = RequestKind.GENERATE
    pooling: PoolParams | None = None
    adapter: Adapter | None = None  # without FEATURE_LORA only None is accepted

    @classmethod
    def of(
        cls,
        core: RequestCore,
        request_id: str,
        attempt: int,
        prompt_tokens: bytes,
        output_tokens: bytes,
        *,
        block_hashes: bytes = b"",
        age: float = 0.0,
        alone: bool = False,
        kv_source: str = "",
    ) -> "AddRequest":
        return cls(
            request_id,
            attempt,
            prompt_tokens,
            output_tokens,
            core.params,
            block_hashes,
            core.priority,
            core.cache_salt,
            age,
            alone,
            kv_source,
            core.constraint,
            core.kind,
            core.pooling,
            core.adapter,
        )

    @property
    def core(self) -> RequestCore:
        return RequestCore(
            self.params, self.priority, self.cache_salt, self.constraint, self.kind, self.pooling, self.adapter
        )

    @property
    def num_tokens(self) -> int:
        return (len(self.prompt_tokens) + len(self.output_tokens)) // TOKEN_BYTES

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_tokens) // TOKEN_BYTES


class Abort(_Message, frozen=True):
    """Forgets these requests; no output follows for them."""

    request_ids: list[str]


class Call(_Message, frozen=True):
    """Runs an operation that is not a request; the Result has the same id."""

    id: int
    method: str  # a name of kvasir.engine.engine_calls
    arguments: bytes = b""  # the struct of the method, in msgpack; empty: none


class StartWave(_Message, frozen=True):
    """Makes the engine step together with the others of its group, because one of them gets a request.

    An engine that does so already, or that runs alone, drops it. One that comes late costs a few empty passes.
    """


# ------------------------------------------------------------------------------------------------ both ways


class Heartbeat(_Message, frozen=True):
    """Sent every second by both sides."""

    stats: EngineStats | None = None  # from an engine that is ready
    step_age: float = 0.0  # Seconds since the engine's step counter last moved, while it has work; 0 when idle.
    saw_draining: bool = False  # from a frontend, once, in answer to Draining: no AddRequest follows
    step_limit: float = 0.0  # from an engine: the `step_age` from which it is stuck; 0 if not announced
    shows_load: bool = True  # from an engine: this frontend's metrics include its load; one frontend's do
    stuck: FailedStep | None = None  # from an engine whose `step_age` is beyond its `step_limit`: the step


class Goodbye(_Message, frozen=True):
    """The peer leaves on purpose and has nothing unfinished."""


FromEngine = Hello | Ready | Outputs | CacheEvents | AdaptersHeld | Result | Draining | Dead | Heartbeat | Goodbye
FromFrontend = Welcome | Refused | AddRequest | Abort | Call | StartWave | Heartbeat | Goodbye


@dataclass(frozen=True)
class Since:
    """The versions that added messages and fields; all others need version 1."""

    messages: Mapping[type[msgspec.Struct], int] = field(default_factory=dict)
    # By struct and name: only fields that change the work of the receiver. It may ignore the others.
    fields: Mapping[tuple[type[msgspec.Struct], str], int] = field(default_factory=dict)


SINCE: Final = Since(
    messages={StartWave: 2, CacheEvents: 2, AdaptersHeld: 2},
    fields={
        (AddRequest, "constraint"): 2,
        (AddRequest, "kind"): 2,
        (AddRequest, "pooling"): 2,
        (AddRequest, "adapter"): 2,
        (Call, "arguments"): 2,
    },
)
