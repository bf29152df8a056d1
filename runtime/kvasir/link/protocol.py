"""Every message between frontend and engine: the one wire contract, msgspec structs in msgpack.

A frontend binds a ROUTER, each engine connects a DEALER to it under its *incarnation*; each ZMQ message is one
frame that holds one of the structs below.

Versions N and N-1 talk to each other, so that frontends and engines can be updated one by one:

- Hello and Welcome announce the versions. Both ends use the lower one (codec.py).
- Fields are only appended, with defaults. A receiver ignores the fields that it does not have.
- If a receiver must understand a new field or message, `PROTOCOL_VERSION` goes up and `SINCE` has the version. It
  is not sent to an older peer. A request that needs a later version goes to the engines that have it.
- A receiver skips and counts a message that it does not have, and reads an unknown value of an enum as a default.

The order of a conversation: Hello (until answered) → Welcome or Refused → Hello again when the phase changes →
Ready → AddRequest / Abort and Outputs → Draining → Goodbye, or Dead. Both ends send heartbeats all the time.

A Hello after Ready starts over: the engine took the frontend for lost and has dropped its requests. A request that
comes before Ready is answered with RefusalKind.UNAVAILABLE; one that crosses Draining is still served.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from kvasir.request.constraint import OutputConstraint
from kvasir.request.hashing import BLAKE2B
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import TOKEN_BYTES
from kvasir_contract.phases import Phase

PROTOCOL_VERSION: Final = 2
OLDEST_PROTOCOL: Final = 1
"""The oldest version of a peer that is accepted: PROTOCOL_VERSION - 1 once there has been one."""

FEATURE_PREFIX_CACHE: Final = "prefix-cache"
"""The engine looks AddRequest.block_hashes up."""
FEATURE_PRIORITY: Final = "priority"
"""The engine serves by AddRequest.priority; others refuse a request with one."""
FEATURE_WAVES: Final = "waves"
"""The engine steps together with the other engines that have this feature (kvasir.engine.waves)."""


SUSPECT_TOKENS: Final = 3
"""Tokens that a suspect gets alone. It is computed again up to the token with which its engine failed, although the
engine may have failed before it could send its last two tokens (two steps overlap)."""

_PHASES: Final = {phase.value: phase for phase in Phase}


class ProtocolError(ValueError):
    """A frame that is not one of the messages expected from this side."""


class FinishReason(StrEnum):
    STOP = "stop"
    """An end-of-sequence or stop token."""
    LENGTH = "length"
    """`max_tokens` or the model's context is reached."""
    ABORT = "abort"
    ERROR = "error"

    @classmethod
    def _missing_(cls, value: object) -> "FinishReason":
        """Return STOP for a reason that a later version has added: the output is complete."""
        return cls.STOP


class RefusalKind(StrEnum):
    """Why an engine does not take a request, or gives it back."""

    INVALID = "invalid"
    """No engine can compute it as it is (HTTP 400)."""
    OVERLOADED = "overloaded"
    """The engine has reached a bound; it can take the request later (HTTP 429)."""
    UNAVAILABLE = "unavailable"
    """The engine is not ready, or is stopping; another engine can take the request (HTTP 503)."""
    UNKNOWN = "unknown"
    """A kind that a later version has added (HTTP 500, like any failure)."""

    @classmethod
    def _missing_(cls, value: object) -> "RefusalKind":
        return cls.UNKNOWN


class Progress(msgspec.Struct, frozen=True, array_like=True):
    done: int
    """Bytes loaded so far."""
    total: int


class EngineStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An engine's load, for the router and the metrics."""

    waiting: int
    """Requests admitted to no row yet, preempted ones included."""
    running: int
    """Requests that own a row."""
    kv_blocks_used: int
    step: int
    """Steps done since the engine started: stands still while idle."""
    preemptions: int = 0
    """Preemptions since the engine started."""
    corrupted: int = 0
    """Requests whose logits were not numbers, since the engine started."""
    unfinished_tokens: int = 0
    """The rest of the prompts that are computed in chunks. It does not count requests without a row: how much of
    them is cached is not known before they get one."""


class StepRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that a step computes."""

    request_id: str
    digest: bytes
    """See kvasir.request.request_digest."""


class FailedStep(msgspec.Struct, frozen=True, array_like=True):
    """The requests that an engine computed when it failed, or that it is stuck with: of all steps in flight.

    Requests that only waited are not among them.
    """

    incarnation: str
    requests: tuple[StepRequest, ...] = ()


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# ------------------------------------------------------------------------------------------ engine → frontend


class Hello(_Message, frozen=True):
    """The engine introduces itself, or reports a new phase; repeated until it is answered."""

    protocol: int
    service: str
    """UID of the InferenceService ("" when none was given): engines of another service are refused."""
    incarnation: str
    """The ZMQ identity: rank and a fresh id, new with each process."""
    rank: int
    node: str
    version: str
    fingerprint: str
    """Hash of the model's identity (config.json and the weights' index), see kvasir.hub."""
    tokenizer_hash: str
    phase_name: str
    progress: Progress | None = None
    crashed: FailedStep | None = None
    """The step in which the last engine at this place ended; of incarnation "" if there was none. An idle one had
    no step, so no request is named. None: the engine has no black box."""

    @property
    def phase(self) -> Phase:
        """The phase; STARTING for one that a later version has added, because only Ready makes an engine usable."""
        return _PHASES.get(self.phase_name, Phase.STARTING)


class Ready(_Message, frozen=True):
    """The engine takes requests from now on."""

    block_size: int
    """Tokens per KV block."""
    num_blocks: int
    """KV blocks that requests can use."""
    max_model_len: int
    """Tokens, prompt and output together."""
    max_num_seqs: int
    features: tuple[str, ...] = ()
    """Optional features that this engine has, see FEATURE_…."""
    max_queued_tokens: int = 0
    """Limit for the tokens of requests that wait; further requests are refused as OVERLOADED. 0: not announced."""
    hash_algorithm: str = BLAKE2B
    """How it hashes blocks (request/hashing.py). Block hashes of another algorithm do not fit its prompts."""
    numerics: str = ""
    """Engines of the same class continue each other's requests exactly (kvasir.engine.numerics). "": unknown."""
    max_num_batched_tokens: int = 0
    """Tokens that a step computes at most. 0: not announced, or a step computes parts of several long prompts, so
    that a long one does not delay those behind it."""
    kv_address: str = ""
    """Where other engines of the class fetch KV blocks from this one (kvasir.engine.handover). "": they cannot."""
    weights: str = ""
    """Identity of the model's weights (kvasir.hub.weights_identity): an answer continues on engines with the same
    ones only. "": unknown."""


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log probabilities of tokens in their order, before penalties, bias and temperature (raw_logprobs in vLLM).

    Lists have one entry per token; `top_*` hold the k most likely tokens at its place, the most likely first.
    """

    token: list[float]
    rank: list[int]
    """How many tokens are at least as likely as this one; 1 is the most likely."""
    top_ids: list[list[int]]
    top: list[list[float]]


class RequestProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The history of a request in an engine, for metrics and traces. One struct, because most outputs have none."""

    num_preemptions: int = 0
    """So far, in this attempt."""
    prefill_seconds: float | None = None
    """Time from the end of `RequestOutput.queue_seconds` to the first token; with the first output."""
    decode_seconds: float | None = None
    """Time from the first token to the last; with the last output."""


class RequestOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one step did for one request."""

    request_id: str
    attempt: int
    position: int
    """Output tokens emitted before `token_ids`: a gap or an overlap means that the engine is not trusted."""
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The stop token of `SamplingParams.stop_token_ids` that ended it; None for an end-of-sequence token."""
    error: str = ""
    """With FinishReason.ERROR: why, for the client to read."""
    logprobs: Logprobs | None = None
    """For `token_ids`, if SamplingParams.logprobs is set."""
    prompt_logprobs: Logprobs | None = None
    """For the prompt's tokens from the second on; sent with the request's first output."""
    num_cached_tokens: int | None = None
    """Prompt tokens whose KV was found in the prefix cache when the request was first admitted; with the first
    output of an attempt."""
    queue_seconds: float | None = None
    """Time from the request's arrival in the engine until it was first admitted; with `num_cached_tokens`."""
    refusal: RefusalKind | None = None
    """With FinishReason.ERROR: why the engine does not compute the request. None: it tried, and failed."""
    progress: RequestProgress | None = None
    """With the first output of an attempt and with its last; with all of them after a preemption."""


class Outputs(_Message, frozen=True):
    """All results of one step for one frontend."""

    outputs: list[RequestOutput]
    stats: EngineStats


class Draining(_Message, frozen=True):
    """Send no more requests; what runs is finished, within the drain timeout.

    The frontend answers with Heartbeat.saw_draining. Its earlier requests are served, so the engine waits for them,
    or until the frontend has sent them elsewhere and aborts them here.
    """

    seconds: float = 0.0
    """Time until the engine gives back what has not ended. 0: at once, or not announced."""


class Dead(_Message, frozen=True):
    """The engine failed and ends: take back everything it has not finished."""

    reason: str
    crashed: FailedStep | None = None
    """The step in which it failed. None from an engine of an earlier version."""


class CacheEvents(_Message, frozen=True):
    """Changes of the prefix cache, for a frontend that asked for them (Welcome.cache_events). 16 bytes per hash.

    The first messages carry the hashes that the cache held before, in parts; the order of the messages matters.
    """

    sequence: int
    """Counts up for each frontend. 0 begins a snapshot: forget all earlier messages."""
    stored: bytes = b""
    """Hashes that are in the cache now; some may have been reported before."""
    evicted: bytes = b""
    """Hashes that are not in the cache any more. None of them is in `stored`."""
    reset: bool = False
    """All hashes of earlier messages were evicted."""


class Result(_Message, frozen=True):
    """The answer to a Call."""

    id: int
    error: str = ""
    """Why it was not done; empty when it was."""
    values: list[str] = []
    """The results of the workers."""


# ------------------------------------------------------------------------------------------ frontend → engine


class Welcome(_Message, frozen=True):
    """The engine is accepted. Sent for each Hello."""

    protocol: int
    frontend: str
    """The frontend's own incarnation: an engine drops the requests of an older one."""
    cache_events: bool = False
    """The frontend needs CacheEvents."""


class Refused(_Message, frozen=True):
    """The engine is not accepted."""

    reason: str
    """For the engine's log and its status."""
    retry: bool
    """True: the frontend does not know this incarnation (it was taken for lost, say): drop its requests and say
    Hello again. False: it never will be accepted as it is (another model, protocol or service)."""
    frontend: str = ""
    """The frontend's own incarnation."""


class AddRequest(_Message, frozen=True):
    """Generate for this request: from its start, or from where an earlier attempt stood."""

    request_id: str
    """Unique over all frontends."""
    attempt: int
    """Counts up each time the request is given to an engine; outputs of an older attempt are dropped."""
    prompt_tokens: bytes
    """Four bytes for each token, little endian (see kvasir.request.tokens)."""
    output_tokens: bytes
    """Already emitted by earlier attempts: they are computed like the prompt but count as output."""
    params: SamplingParams
    block_hashes: bytes = b""
    """16 bytes for each full block of the prompt, chained (request/hashing.py). Empty: the engine hashes it, if it
    has a prefix cache."""
    priority: int = 0
    """Smaller is served first, where the engine schedules by priority."""
    cache_salt: str = ""
    """Requests of different salts share no KV block; `block_hashes` are chained to it."""
    age: float = 0.0
    """Seconds since the request came, if another engine was lost with it or gave it back; 0 for a fresh one. It is
    served before the fresh ones of its priority, the oldest first."""
    alone: bool = False
    """A step that computes it computes no other request, until it has got SUSPECT_TOKENS tokens in this attempt: an
    engine may have failed because of it."""
    kv_source: str = ""
    """The Ready.kv_address of an engine that has KV blocks of the tokens: they may be fetched from it instead of
    being computed. "": none is known."""
    constraint: OutputConstraint | None = None
    """Which texts the output may be, the emitted tokens included. None: any."""

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return (len(self.prompt_tokens) + len(self.output_tokens)) // TOKEN_BYTES

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_tokens) // TOKEN_BYTES


class Abort(_Message, frozen=True):
    """Forget these requests; no output follows for them."""

    request_ids: list[str]


class Call(_Message, frozen=True):
    """Run an operation that is not a request; answered by a Result with the same id."""

    id: int
    method: str
    """reset_prefix_cache, start_profile or stop_profile"""


class StartWave(_Message, frozen=True):
    """Begin to step together with the other engines of the group: one of them gets a request now.

    An engine that does so already, or that runs alone, drops it. One that comes late costs a few empty passes.
    """


# ------------------------------------------------------------------------------------------------ both ways


class Heartbeat(_Message, frozen=True):
    """Sent every second by both sides; an engine's carries its load and the age of its last step."""

    stats: EngineStats | None = None
    """From an engine that is ready."""
    step_age: float = 0.0
    """Seconds since the engine's step counter last moved, while it has work; 0 when idle."""
    saw_draining: bool = False
    """From a frontend, once, in answer to Draining: no AddRequest follows this message."""
    step_limit: float = 0.0
    """From an engine: the `step_age` in seconds from which it is stuck. 0: not announced."""
    shows_load: bool = True
    """From an engine: the metrics of this frontend include the engine's load. One of its frontends does."""
    stuck: FailedStep | None = None
    """From an engine whose `step_age` is beyond its `step_limit`: the step."""


class Goodbye(_Message, frozen=True):
    """The peer leaves on purpose and has nothing unfinished."""


FromEngine = Hello | Ready | Outputs | CacheEvents | Result | Draining | Dead | Heartbeat | Goodbye
FromFrontend = Welcome | Refused | AddRequest | Abort | Call | StartWave | Heartbeat | Goodbye


@dataclass(frozen=True)
class Since:
    """The versions that added messages and fields; those that are not listed need no more than version 1."""

    messages: Mapping[type[msgspec.Struct], int] = field(default_factory=dict)
    fields: Mapping[tuple[type[msgspec.Struct], str], int] = field(default_factory=dict)
    """By struct and name: only fields that change what the receiver must do. The others it may ignore."""


SINCE: Final = Since(messages={StartWave: 2, CacheEvents: 2}, fields={(AddRequest, "constraint"): 2})
