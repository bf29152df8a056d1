"""Inbox: requests and events between the link's thread and the busy loop.

Each turn takes all events and a bounded number of requests, in the scheduler's order: urgent requests do not wait
behind a burst. The loop never gets requests that are aborted first.
"""

import contextlib
import logging
import queue
import threading
from dataclasses import dataclass, field
from typing import TypeAlias

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.handover.messages import HandOverEvent
from kvasir.engine.ingest import Ingest, RefusedRequest
from kvasir.engine.scheduling.service_order import ServiceOrder
from kvasir.link.engine_end.engine_link import FrontendLost, LinkEvent, Received
from kvasir.link.protocol import Abort, AddRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wake:
    request_id: str


@dataclass(frozen=True)
class ExecutorFailed:
    error: Exception


@dataclass(frozen=True)
class WaveCalled:
    wave: int


Event: TypeAlias = LinkEvent | RefusedRequest | Wake | ExecutorFailed | WaveCalled | HandOverEvent


@dataclass
class Taken:
    events: list[Event] = field(default_factory=list)
    requests: list[EngineRequest] = field(default_factory=list)


class Inbox:
    """`put` belongs to the link's thread, `take` and `wait` to the loop's."""

    def __init__(self) -> None:
        self._ingest: Ingest | None = None
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._requests: dict[tuple[str, str], EngineRequest] = {}  # by frontend and id
        self._order = ServiceOrder()  # as the loop takes them
        self._num_arrivals = 0
        self._must_wake = False  # events came since `flush`; link's thread only
        # not a lock: signal handlers put into it
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def open(self, ingest: Ingest) -> None:
        self._ingest = ingest

    # ------------------------------------------------------------------------------------ in the link's thread

    def put(self, event: LinkEvent) -> None:
        self._must_wake = True
        match event:
            case Received(frontend, AddRequest() as message):
                self._put_request(frontend, message)
            case Received(frontend, Abort(request_ids)):
                with self._lock:
                    for request_id in request_ids:
                        self._withdraw((frontend, request_id))
                    self._events.append(event)  # the loop may have an earlier attempt
            case FrontendLost(frontend):
                with self._lock:
                    for key in [key for key in self._requests if key[0] == frontend]:
                        self._withdraw(key)
                    self._events.append(event)
            case _:
                with self._lock:
                    self._events.append(event)

    def flush(self) -> None:
        # not in `put`: the loop would step for the first of several requests
        if self._must_wake:
            self._must_wake = False
            self.wake()

    def _put_request(self, frontend: str, message: AddRequest) -> None:
        if self._ingest is None:
            raise RuntimeError(f"request {message.request_id} came before the engine was ready")
        prepared = self._ingest.prepare(frontend, message)
        key = (frontend, message.request_id)
        with self._lock:
            waiting = self._requests.get(key)
            if waiting is not None and message.attempt <= waiting.attempt:
                log.warning(
                    "request %s: attempt %d came after attempt %d: dropped",
                    message.request_id,
                    message.attempt,
                    waiting.attempt,
                )
                if not isinstance(prepared, RefusedRequest):
                    self._release(prepared)
                return
            self._withdraw(key)  # an earlier attempt, which the loop would queue after a refusal
            if isinstance(prepared, RefusedRequest):
                self._events.append(prepared)
                return
            self._num_arrivals += 1
            prepared.rank = (prepared.core.priority, prepared.seniority, self._num_arrivals)
            self._requests[key] = prepared
            self._order.add(prepared)

    def _withdraw(self, key: tuple[str, str]) -> None:
        request = self._requests.pop(key, None)
        if request is not None:
            self._order.remove(request)
            self._release(request)

    def _release(self, request: EngineRequest) -> None:
        if self._ingest is not None:
            self._ingest.release(request)

    # ------------------------------------------------------------------------------------ in the loop's thread

    @property
    def empty(self) -> bool:
        return not (self._events or self._requests)

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def take(self, most: int | None) -> Taken:
        """Take all events and the first `most` requests; None: all."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._bell.get_nowait()
        with self._lock:
            events, self._events = self._events, []
            requests = self._order.pop_first(most)
            for request in requests:
                del self._requests[request.frontend, request.request_id]
            return Taken(events, requests)

    def wait(self, seconds: float | None) -> None:
        if self.empty:
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=seconds)

    def wake_request(self, request_id: str) -> None:
        self._put_and_wake(Wake(request_id))

    def call_wave(self, wave: int) -> None:
        self._put_and_wake(WaveCalled(wave))

    def put_hand_over(self, event: HandOverEvent) -> None:
        self._put_and_wake(event)

    def fail(self, error: Exception) -> None:
        # an idle loop would not notice
        self._put_and_wake(ExecutorFailed(error))

    def _put_and_wake(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
        self.wake()

    def wake(self) -> None:
        """Make `wait` return. Safe in signal handlers."""
        if self._bell.empty():
            self._bell.put(None)
