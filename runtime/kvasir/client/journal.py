"""Every live request with all it takes to continue it on another engine: prompt, emitted tokens, parameters.

AsyncLLM adds and removes entries, the output processor appends tokens; which requests an engine loses when it is
lost is read here. A request is live until its consumer is done with it, so a slow reader counts too.
"""

import asyncio
from array import array
from dataclasses import dataclass, field
from enum import Enum

from kvasir.client.collector import Collector
from kvasir.client.input.prompt_hashes import PromptHashes
from kvasir.client.request_errors import InvalidRequest, TooManyRequests
from kvasir.client.request_observer import Trace
from kvasir.client.text.detokenizer import TextStream
from kvasir.client.text.stop_strings import StopSearch
from kvasir.link.protocol import AddRequest
from kvasir.params import SamplingParams
from kvasir.tokens import to_wire, token_array

RETRY_AFTER = 1.0
"""Seconds after which a client may try again when the journal is full: a place is free as soon as a request
ends."""


class RequestState(Enum):
    """How far a live request is."""

    WAITING = "waiting"
    """No engine works on it yet."""
    RUNNING = "running"
    """The engine `LiveRequest.engine` works on it."""
    FINISHED = "finished"
    """It has succeeded, failed or been aborted; its consumer may still read."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request. Written by the journal (`state`, `engine`, `attempt`) and the output processor (the rest)."""

    request_id: str
    prompt_token_ids: "array[int]"
    params: SamplingParams
    text: TextStream
    stops: StopSearch | None = None
    """Of a request with stop strings."""
    include_stop: bool = False
    """The stop string or stop token that ends the text stays in it."""
    collector: Collector = field(default_factory=Collector)
    priority: int = 0
    """Smaller is served first, by engines that schedule by priority."""
    cache_salt: str = ""
    """Requests of different salts share nothing in an engine's prefix cache."""
    output_token_ids: "array[int]" = field(default_factory=token_array)
    attempt: int = 0
    """Engines it was given to so far: outputs carry it."""
    state: RequestState = RequestState.WAITING
    engine: str = ""
    """The incarnation that it was last given to; empty before."""
    trace: Trace = field(default_factory=Trace)
    """What metrics and log want to know of it."""
    hashes: PromptHashes | None = None
    """Of the prompt's blocks, shared with other choices for it; without them, engines make their own."""

    def __post_init__(self) -> None:
        self.trace.params, self.trace.prompt_tokens = self.params, len(self.prompt_token_ids)

    def message(self, cache_block_size: int | None = None) -> AddRequest:
        """What an engine needs to go on with it, as its next attempt.

        `cache_block_size`: tokens per block of the engine's prefix cache; None where it keeps none.
        """
        return AddRequest(
            request_id=self.request_id,
            attempt=self.attempt + 1,
            prompt_tokens=to_wire(self.prompt_token_ids),
            output_tokens=to_wire(self.output_token_ids),
            params=self.params,
            block_hashes=self.hashes.known(cache_block_size) if self.hashes and cache_block_size else b"",
            priority=self.priority,
            cache_salt=self.cache_salt,
        )


class Journal:
    """The live requests, at most `limit` of them, by id and by engine."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._requests: dict[str, LiveRequest] = {}
        self._by_engine: dict[str, dict[str, LiveRequest]] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: str) -> LiveRequest | None:
        return self._requests.get(request_id)

    def add(self, request: LiveRequest) -> None:
        """Raises TooManyRequests when the journal is full and InvalidRequest for an id that is live already."""
        if request.request_id in self._requests:
            raise InvalidRequest(f"a request with id {request.request_id!r} is still running: choose another id")
        self.check_room()
        self._requests[request.request_id] = request
        self._empty.clear()

    def check_room(self) -> None:
        """Raises TooManyRequests when the journal is full."""
        if len(self._requests) >= self._limit:
            raise TooManyRequests(
                f"{self._limit} requests are in flight, which is this frontend's limit (--max-live-requests): "
                "try again when some have finished",
                RETRY_AFTER,
            )

    def assign(self, request: LiveRequest, engine: str) -> None:
        """Record that the engine was given the request's next attempt."""
        assert request.state is not RequestState.FINISHED, request.request_id
        self._leave_engine(request)
        request.state = RequestState.RUNNING
        request.engine = engine
        request.attempt += 1
        self._by_engine.setdefault(engine, {})[request.request_id] = request

    def finish(self, request: LiveRequest) -> None:
        """Record that no engine works on the request any more, or will."""
        self._leave_engine(request)
        request.state = RequestState.FINISHED

    def remove(self, request: LiveRequest) -> None:
        """Forget the request: its consumer is done with it."""
        self.finish(request)
        del self._requests[request.request_id]
        if not self._requests:
            self._empty.set()

    def of_engine(self, engine: str) -> list[LiveRequest]:
        """Return the requests that this engine works on."""
        return list(self._by_engine.get(engine, {}).values())

    def in_flight(self, engine: str) -> int:
        return len(self._by_engine.get(engine, ()))

    def running(self) -> list[LiveRequest]:
        """Return the requests that engines work on."""
        return [request for requests in self._by_engine.values() for request in requests.values()]

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def _leave_engine(self, request: LiveRequest) -> None:
        if request.state is not RequestState.RUNNING:
            return
        requests = self._by_engine[request.engine]
        del requests[request.request_id]
        if not requests:
            del self._by_engine[request.engine]
