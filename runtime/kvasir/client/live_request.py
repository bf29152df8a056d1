"""A request in the journal, with its progress over all its engines, and the collector of its output."""

import asyncio
import time
from array import array
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from kvasir.client.input.prompted import Prompted, PromptHashes
from kvasir.client.request_observer import Trace
from kvasir.client.text.detokenizer import TextStream
from kvasir.client.text.logprob_lists import joined
from kvasir.client.text.stop_strings import StopSearch
from kvasir.link.protocol import AddRequest, FinishReason, Logprobs
from kvasir.request.hashing import BlockHashing, request_digest
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestKind
from kvasir.request.tokens import to_wire, token_array


class Delta(msgspec.Struct):
    text: str
    """Empty only in the last delta: unfinished text comes later."""
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    """Set only in the last delta. A failed request ends with an exception."""
    stop_reason: int | str | None = None
    """The token of `stop_token_ids` or the stop string; None for an end-of-sequence token."""
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    """Set only in the first delta, from the second token on."""
    pooled: bytes | None = None
    """Set only in the delta of a request of kind POOL: float32, little endian."""


class Collector:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None
        self._logprobs: Logprobs | None = None
        self._prompt_logprobs: Logprobs | None = None
        self._pooled: bytes | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(
        self,
        text: str,
        token_ids: list[int],
        finish_reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
    ) -> None:
        if text:
            self._texts.append(text)
        self._token_ids += token_ids
        if finish_reason is not None:
            self._finish_reason, self._stop_reason = finish_reason, stop_reason
        if self._readable:
            self._wake()

    def put_logprobs(self, logprobs: Logprobs | None, prompt_logprobs: Logprobs | None) -> None:
        if logprobs is not None:
            # before `put` of their tokens, as a reader must find both
            self._logprobs = joined(self._logprobs, logprobs)
        if prompt_logprobs is not None:
            self._prompt_logprobs = prompt_logprobs

    def put_pooled(self, vector: bytes) -> None:
        # before `put` of the end
        self._pooled = vector

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    async def take(self) -> Delta:
        """Wait for text or the end. Raises the exception given to `fail`."""
        while not self._readable:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._pop()

    def take_now(self) -> Delta | None:
        """Return new output, even tokens without text yet, or None."""
        if self._readable or self._token_ids:
            return self._pop()
        if self._error is not None:
            raise self._error
        return None

    def _pop(self) -> Delta:
        delta = Delta(
            "".join(self._texts),
            self._token_ids,
            self._finish_reason,
            self._stop_reason,
            self._logprobs,
            self._prompt_logprobs,
            self._pooled,
        )
        self._texts, self._token_ids = [], []
        self._logprobs = self._prompt_logprobs = None
        return delta

    @property
    def _readable(self) -> bool:
        return bool(self._texts) or self._finish_reason is not None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True)
class Interruption:
    reason: str
    """"lost" with its engine, or "returned" by it."""
    since: float = field(default_factory=time.perf_counter)
    numerics: str = ""  # the class of the request's engine
    exact: bool = True  # the engine continues it exactly


class RequestState(Enum):
    WAITING = "waiting"  # for the first or another engine
    RUNNING = "running"  # by `LiveRequest.engine`
    FINISHED = "finished"  # its reader may still read


@dataclass(slots=True, eq=False)
class LiveRequest:
    """Written by the journal (`state`, `engine`, `last_engine`, `attempt`), the dispatcher (`refused_by`,
    `adapter_error`, `numerics`, `weights`), the migration (`lost_engines`, `losses_in_a_row`) and the output
    processor.
    """

    request_id: str
    prompted: Prompted
    text: TextStream
    stops: StopSearch | None = field(init=False)
    collector: Collector = field(default_factory=Collector)
    client: str = ""  # for fairness in the queue
    output_token_ids: "array[int]" = field(default_factory=token_array)
    attempt: int = 0  # number of engines that got it; repeated in outputs
    state: RequestState = RequestState.WAITING
    engine: str = ""  # incarnation; "" while it waits
    last_engine: str = ""  # `engine`, or the previous one while it waits
    lost_engines: tuple[str, ...] = ()
    losses_in_a_row: int = 0  # losses of engines since the last token
    interruption: Interruption | None = None  # from the loss of its engine to the next token
    num_resuming_tokens: int = 0  # its part of `Journal.resuming_tokens`
    numerics: str = ""  # of the engine of its last token
    weights: str = ""  # their identity in that engine; "" if unknown
    refused_by: tuple[str, ...] = ()  # not ready, stopping, or without the adapter
    adapter_error: Exception | None = None  # of the last engine that has not got the adapter
    trace: Trace = field(default_factory=Trace)
    num_earlier_tokens: int = 0
    num_earlier_preemptions: int = 0
    _digest: bytes = b""

    def __post_init__(self) -> None:
        prompted = self.prompted
        self.stops = None if prompted.stops is None else StopSearch(prompted.stops, prompted.include_stop)
        generates = prompted.core.kind is RequestKind.GENERATE
        self.trace.params = prompted.core.params if generates else None
        self.trace.prompt_tokens = len(prompted.prompt_token_ids)

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
    def adapter_digest(self) -> str:
        return self.prompted.core.adapter_digest

    @property
    def hashes(self) -> PromptHashes | None:
        return self.prompted.hashes

    @property
    def data_parallel_rank(self) -> int | None:
        return self.prompted.data_parallel_rank

    def interrupt(self, reason: str) -> None:
        if self.interruption is None:
            self.interruption = Interruption(reason)

    def forget_refusals(self) -> None:
        self.refused_by, self.adapter_error = (), None

    def message(self, hashing: BlockHashing | None = None, alone: bool = False, kv_source: str = "") -> AddRequest:
        """Return the message for the next attempt. `hashing` is None if the engine uses no hashes."""
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
        # only for a lost engine, or after strikes
        if not self._digest:
            self._digest = request_digest(to_wire(self.prompt_token_ids), self.prompted.core)
        return self._digest

    @property
    def attempt_tokens(self) -> int:
        return len(self.output_token_ids) - self.num_earlier_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.prompted.prompt_token_ids) + len(self.output_token_ids)


def service_order(request: LiveRequest) -> tuple[int, float]:
    """Sorts by priority, then by age."""
    return request.priority, request.trace.started
