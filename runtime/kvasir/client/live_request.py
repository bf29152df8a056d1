"""One live request: the data that an engine needs to compute or continue it, and its progress."""

import time
from array import array
from dataclasses import dataclass, field
from enum import Enum

from kvasir.client.collector import Collector
from kvasir.client.input.prompt_hashes import PromptHashes
from kvasir.client.input.prompted import Prompted
from kvasir.client.request_observer import Trace
from kvasir.client.text.detokenizer import TextStream
from kvasir.client.text.stop_strings import StopSearch
from kvasir.link.protocol import AddRequest
from kvasir.request.hashing import BlockHashing
from kvasir.request.params import SamplingParams
from kvasir.request.request_digest import request_digest
from kvasir.request.tokens import to_wire, token_array


@dataclass(slots=True)
class Interruption:
    """Why a request waits for its next token on another engine."""

    reason: str
    """"lost" if its engine was lost, "returned" if the engine gave it back."""
    since: float = field(default_factory=time.perf_counter)
    numerics: str = ""
    """Class of the engine that has the request now."""
    exact: bool = True
    """Whether that engine continues the request exactly."""


class RequestState(Enum):
    WAITING = "waiting"
    """No engine has the request: it is new, or its engine was lost."""
    RUNNING = "running"
    FINISHED = "finished"
    """No engine will compute the request. Its reader may still read."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """Written by the journal (`state`, `engine`, `last_engine`, `attempt`), the dispatcher (`refused_by`,
    `numerics`, `weights`), the migration (`lost_engines`, `losses_in_a_row`) and the output processor (the
    rest)."""

    request_id: str
    prompted: Prompted
    text: TextStream
    stops: StopSearch | None = field(init=False)
    """The search for stop strings, if the request has any."""
    collector: Collector = field(default_factory=Collector)
    client: str = ""
    """Who sent it. The queue of the frontend is fair among clients."""
    output_token_ids: "array[int]" = field(default_factory=token_array)
    attempt: int = 0
    """Number of engines that got the request so far."""
    state: RequestState = RequestState.WAITING
    engine: str = ""
    """Incarnation; "" while the request waits."""
    last_engine: str = ""
    """Incarnation of `engine`, or of the one before while the request waits."""
    lost_engines: tuple[str, ...] = ()
    losses_in_a_row: int = 0
    """Losses since the request has got further."""
    interruption: Interruption | None = None
    """Set from the loss of its engine until its next token."""
    num_resuming_tokens: int = 0
    """Share of the request in `Journal.resuming_tokens`."""
    numerics: str = ""
    """Class of the engine that computed the last token."""
    weights: str = ""
    """Identity of that engine's weights; "" if unknown."""
    refused_by: tuple[str, ...] = ()
    """Engines that must not get the request again: they were not ready, or stop."""
    trace: Trace = field(default_factory=Trace)
    num_earlier_tokens: int = 0
    """Output tokens before this attempt."""
    num_earlier_preemptions: int = 0
    """Preemptions in the attempts before this one."""
    _digest: bytes = b""

    def __post_init__(self) -> None:
        prompted = self.prompted
        self.stops = None if prompted.stops is None else StopSearch(prompted.stops, prompted.include_stop)
        self.trace.params, self.trace.prompt_tokens = prompted.core.params, len(prompted.prompt_token_ids)

    @property
    def prompt_token_ids(self) -> "array[int]":
        return self.prompted.prompt_token_ids

    @property
    def params(self) -> SamplingParams:
        return self.prompted.core.params

    @property
    def priority(self) -> int:
        return self.prompted.core.priority

    @property
    def hashes(self) -> PromptHashes | None:
        return self.prompted.hashes

    @property
    def data_parallel_rank(self) -> int | None:
        return self.prompted.data_parallel_rank

    def interrupt(self, reason: str) -> None:
        """Note that its engine does not continue it. The first reason counts if several engines fail."""
        if self.interruption is None:
            self.interruption = Interruption(reason)

    def message(self, hashing: BlockHashing | None = None, alone: bool = False, kv_source: str = "") -> AddRequest:
        """Return the message that starts or resumes the request on an engine, as the next attempt.

        `hashing`: how the engine hashes prompts; None if it looks no hashes up. `alone` and `kv_source`:
        see AddRequest.
        """
        prompted = self.prompted
        return AddRequest.of(
            prompted.core,
            request_id=self.request_id,
            attempt=self.attempt + 1,
            prompt_tokens=to_wire(prompted.prompt_token_ids),
            output_tokens=to_wire(self.output_token_ids),
            block_hashes=prompted.hashes.known(hashing) if prompted.hashes and hashing else b"",
            age=0.0 if self.interruption is None else time.perf_counter() - self.trace.started,
            alone=alone,
            kv_source=kv_source,
        )

    @property
    def digest(self) -> bytes:
        """It is computed when an engine is lost, or while a request has strikes."""
        if not self._digest:
            self._digest = request_digest(to_wire(self.prompt_token_ids), self.prompted.core)
        return self._digest

    @property
    def attempt_tokens(self) -> int:
        """Return the number of output tokens of the present attempt."""
        return len(self.output_token_ids) - self.num_earlier_tokens

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of prompt and output so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)


def service_order(request: LiveRequest) -> tuple[int, float]:
    """Sort key: requests move by priority, of equal priority the oldest first."""
    return request.priority, request.trace.started
