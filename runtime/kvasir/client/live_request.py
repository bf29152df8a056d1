"""LiveRequest: a request in the journal, with its progress over all engines that have had it."""

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
    reason: str
    """"lost" if its engine was lost, "returned" if the engine gave it back."""
    since: float = field(default_factory=time.perf_counter)
    numerics: str = ""  # the class of the engine that has the request now
    exact: bool = True  # that engine continues it exactly


class RequestState(Enum):
    WAITING = "waiting"  # not sent yet, or waiting for another engine
    RUNNING = "running"  # computed by `LiveRequest.engine`
    FINISHED = "finished"  # succeeded, failed or aborted; its reader may still read


@dataclass(slots=True, eq=False)
class LiveRequest:
    """Written by the journal (`state`, `engine`, `last_engine`, `attempt`), the dispatcher (`refused_by`,
    `numerics`, `weights`), the migration (`lost_engines`, `losses_in_a_row`) and the output processor."""

    request_id: str
    prompted: Prompted
    text: TextStream
    stops: StopSearch | None = field(init=False)  # None without stop strings
    collector: Collector = field(default_factory=Collector)
    client: str = ""  # its sender: the queue of the frontend is fair among clients
    output_token_ids: "array[int]" = field(default_factory=token_array)
    attempt: int = 0  # engines that have got the request; outputs repeat the number
    state: RequestState = RequestState.WAITING
    engine: str = ""  # the incarnation that has the request; "" while it waits
    last_engine: str = ""  # `engine`, or the one before while it waits
    lost_engines: tuple[str, ...] = ()
    losses_in_a_row: int = 0  # losses of engines since the request last got a token
    interruption: Interruption | None = None  # from the loss of its engine until its next token
    num_resuming_tokens: int = 0  # its part of `Journal.resuming_tokens`
    numerics: str = ""  # of the engine that has computed its last token
    weights: str = ""  # their identity in that engine; "": unknown
    refused_by: tuple[str, ...] = ()  # not ready or stopping: the request is not sent to them again
    trace: Trace = field(default_factory=Trace)
    num_earlier_tokens: int = 0  # output tokens of the attempts before
    num_earlier_preemptions: int = 0  # of the attempts before
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
        if self.interruption is None:
            self.interruption = Interruption(reason)

    def message(self, hashing: BlockHashing | None = None, alone: bool = False, kv_source: str = "") -> AddRequest:
        """Return the message for the next attempt. `hashing`: of the engine; None: it looks no hashes up."""
        prompted = self.prompted
        return AddRequest.of(
            prompted.core,
            self.request_id,
            self.attempt + 1,
            to_wire(prompted.prompt_token_ids),
            to_wire(self.output_token_ids),
            block_hashes=prompted.hashes.known(hashing) if prompted.hashes and hashing else b"",
            age=0.0 if self.interruption is None else time.perf_counter() - self.trace.started,
            alone=alone,
            kv_source=kv_source,
        )

    @property
    def digest(self) -> bytes:
        # needed only when an engine is lost, or while a request has strikes
        if not self._digest:
            self._digest = request_digest(to_wire(self.prompt_token_ids), self.prompted.core)
        return self._digest

    @property
    def attempt_tokens(self) -> int:
        """The output tokens of this attempt."""
        return len(self.output_token_ids) - self.num_earlier_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.prompted.prompt_token_ids) + len(self.output_token_ids)


def service_order(request: LiveRequest) -> tuple[int, float]:
    """Return the sort key: by priority, and the oldest first."""
    return request.priority, request.trace.started
