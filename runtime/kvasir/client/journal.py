"""Every live request with all it takes to continue it on another engine: prompt, emitted tokens, parameters.

AsyncLLM adds and removes entries, the output processor appends tokens; which requests an engine loses when it is
lost is read here. A request is live until its consumer is done with it, so a slow reader counts too.
"""

import asyncio
import time
from dataclasses import dataclass, field

from kvasir.client.collector import Collector
from kvasir.client.detokenizer import TextStream
from kvasir.client.errors import InvalidRequest, TooManyRequests
from kvasir.params import SamplingParams
from kvasir.protocol import AddRequest

RETRY_AFTER = 1.0
"""Seconds a client is told to wait when the journal is full: a place is free as soon as any request ends."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request. Written by the journal (`engine`, `attempt`) and the output processor (the rest)."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    text: TextStream
    collector: Collector = field(default_factory=Collector)
    output_token_ids: list[int] = field(default_factory=list)
    attempt: int = 0
    """Engines it was given to so far: outputs carry it."""
    engine: str | None = None
    """The incarnation that works on it; None before it is given to one and when it is finished or failed."""
    started: float = field(default_factory=time.perf_counter)
    last_tokens: float | None = None
    """When its last tokens came, on the clock of `started`."""

    def message(self) -> AddRequest:
        """What an engine needs to go on with it, as its next attempt."""
        return AddRequest(
            request_id=self.request_id,
            attempt=self.attempt + 1,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=self.output_token_ids,
            params=self.params,
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
        if len(self._requests) >= self._limit:
            raise TooManyRequests(
                f"{self._limit} requests are in flight, which is this frontend's limit (--max-live-requests): "
                "try again when some have finished",
                RETRY_AFTER,
            )
        self._requests[request.request_id] = request
        self._empty.clear()

    def assign(self, request: LiveRequest, engine: str) -> None:
        """The engine was given the request's next attempt."""
        self.release(request)
        request.engine = engine
        request.attempt += 1
        self._by_engine.setdefault(engine, {})[request.request_id] = request

    def release(self, request: LiveRequest) -> None:
        """No engine works on the request any more."""
        if request.engine is None:
            return
        requests = self._by_engine[request.engine]
        del requests[request.request_id]
        if not requests:
            del self._by_engine[request.engine]
        request.engine = None

    def remove(self, request: LiveRequest) -> None:
        """The consumer is done with the request."""
        self.release(request)
        del self._requests[request.request_id]
        if not self._requests:
            self._empty.set()

    def of_engine(self, engine: str) -> list[LiveRequest]:
        """What is lost with this engine."""
        return list(self._by_engine.get(engine, {}).values())

    def in_flight(self, engine: str) -> int:
        return len(self._by_engine.get(engine, ()))

    def unfinished(self) -> list[LiveRequest]:
        return [request for requests in self._by_engine.values() for request in requests.values()]

    async def wait_empty(self) -> None:
        await self._empty.wait()
