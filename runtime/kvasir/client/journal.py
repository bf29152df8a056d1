"""The journal: all live requests, each with its prompt, output tokens and parameters.

A request is live until its reader has finished.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable

from kvasir.client.live_request import Interruption, LiveRequest, RequestState
from kvasir.client.request_errors import InvalidRequest, TooManyRequests

RETRY_AFTER = 1.0


class Journal:
    def __init__(
        self,
        limit: int,
        token_limit: int = sys.maxsize,
        left: Callable[[str, str], None] = lambda request_id, engine: None,
    ) -> None:
        """`left` gets the ids of a request and its engine when the engine stops work on it."""
        self._left = left
        self._limit = limit
        self._token_limit = token_limit
        # output counts as it grows, so live requests may exceed the limit
        self._num_tokens = 0
        self._requests: dict[str, LiveRequest] = {}
        self._by_engine: dict[str, dict[str, LiveRequest]] = {}
        self._resuming: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def get(self, request_id: str) -> LiveRequest | None:
        return self._requests.get(request_id)

    def add(self, request: LiveRequest) -> None:
        """Raises TooManyRequests, or InvalidRequest for a live id."""
        if request.request_id in self._requests:
            raise InvalidRequest(f"a request with id {request.request_id!r} is still running: choose another id")
        num_tokens = request.num_tokens
        self.check_room(num_tokens)
        self._requests[request.request_id] = request
        self._num_tokens += num_tokens
        self._empty.clear()

    def append(self, request: LiveRequest, token_ids: list[int]) -> None:
        request.output_token_ids.extend(token_ids)
        self._num_tokens += len(token_ids)

    def check_room(self, num_tokens: int = 1) -> None:
        """Raise TooManyRequests without room for these tokens."""
        if len(self._requests) >= self._limit:
            raise TooManyRequests(
                f"{self._limit} requests are in flight, which is this frontend's limit (--max-live-requests): "
                "try again when some have finished",
                RETRY_AFTER,
            )
        # a request alone always has room: more would never come
        if self._num_tokens and self._num_tokens + num_tokens > self._token_limit:
            raise TooManyRequests(
                f"requests in flight have {self._num_tokens} tokens, and this frontend's limit is "
                f"{self._token_limit} (--max-live-tokens): try again when some have finished",
                RETRY_AFTER,
            )

    def assign(self, request: LiveRequest, engine: str) -> None:
        assert request.state is not RequestState.FINISHED, request.request_id
        self._leave_engine(request)
        request.state = RequestState.RUNNING
        request.engine = request.last_engine = engine
        request.attempt += 1
        request.num_earlier_tokens = len(request.output_token_ids)
        request.num_earlier_preemptions = request.trace.num_preemptions
        self._by_engine.setdefault(engine, {})[request.request_id] = request
        if request.interruption is not None:
            request.num_resuming_tokens = request.num_tokens
            self._resuming[engine] += request.num_tokens

    def resumed(self, request: LiveRequest, interruption: Interruption) -> None:
        request.interruption, request.numerics = None, interruption.numerics
        self._settle(request)

    def requeue(self, request: LiveRequest) -> None:
        assert request.state is RequestState.RUNNING, request.request_id
        self._leave_engine(request)
        request.state = RequestState.WAITING
        request.engine = ""

    def finish(self, request: LiveRequest) -> None:
        """Record that no engine will work on the request any more."""
        self._leave_engine(request)
        request.state = RequestState.FINISHED

    def remove(self, request: LiveRequest) -> None:
        self.finish(request)
        del self._requests[request.request_id]
        self._num_tokens -= request.num_tokens
        if not self._requests:
            self._empty.set()

    def of_engine(self, engine: str) -> list[LiveRequest]:
        return list(self._by_engine.get(engine, {}).values())

    def live(self) -> list[LiveRequest]:
        return list(self._requests.values())

    def in_flight(self, engine: str) -> int:
        return len(self._by_engine.get(engine, ()))

    def resuming_tokens(self, engine: str) -> int:
        """Return the tokens of moved requests without output from the engine yet."""
        return self._resuming[engine]

    def running(self) -> list[LiveRequest]:
        return [request for requests in self._by_engine.values() for request in requests.values()]

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def _leave_engine(self, request: LiveRequest) -> None:
        if request.state is not RequestState.RUNNING:
            return
        self._settle(request)
        requests = self._by_engine[request.engine]
        del requests[request.request_id]
        if not requests:
            del self._by_engine[request.engine]
        self._left(request.request_id, request.engine)

    def _settle(self, request: LiveRequest) -> None:
        if request.num_resuming_tokens:
            self._resuming[request.engine] -= request.num_resuming_tokens
            if not self._resuming[request.engine]:
                del self._resuming[request.engine]
            request.num_resuming_tokens = 0
