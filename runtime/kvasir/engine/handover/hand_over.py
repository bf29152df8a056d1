"""HandOver: pins blocks for other engines, and holds requests back while their blocks are fetched.

AddRequest.kv_source names an engine that has the blocks of a request. They are fetched into empty blocks,
which then join the prefix cache.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.handover.messages import MAX_FETCH_BLOCKS, FetchEnded, HandOverEvent, PinReleased, PinWanted
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.process.seldom_log import SeldomLog

MIN_TOKENS: Final = 64  # fewer are sooner computed
MAX_FETCHES: Final = 8  # at a time
# A source that sent nothing is avoided for this many times the duration of the fetch.
AVOID_TIMES: Final = 5
MIN_AVOID_SECONDS: Final = 1.0  # requests that waited for the fetch do not wait again
PINNED_SHARE: Final = 2  # at most one block of so many is pinned

log = logging.getLogger(__name__)


class BlockExchange(Protocol):
    def pinned(self, session: int, block_ids: list[int]) -> None: ...

    def fetch(self, number: int, source: str, hashes: list[bytes], block_ids: list[int]) -> None: ...


@dataclass(frozen=True)
class _Fetch:
    request: EngineRequest
    hashes: list[bytes]
    coming: frozenset[bytes]
    cached: list[int]  # the prefix before
    empty: list[int]  # to fill
    began: float  # time.monotonic()


class HandOver(AdmissionGate):
    """A gate for requests whose blocks are fetched. Without an exchange it admits all."""

    def __init__(self) -> None:
        self.num_fetched_blocks = 0
        self.num_failed_fetches = 0
        self.serves = False  # other engines can fetch
        self._exchange: BlockExchange | None = None
        self._fetches: dict[int, _Fetch] = {}
        # for the end of a fetch
        self._waiting: list[EngineRequest] = []
        self._avoided: dict[str, float] = {}  # sources that sent nothing, and until when
        self._pins: dict[int, list[int]] = {}
        self._num_pinned = 0
        # calls that wait until so many steps are computed
        self._postponed: deque[tuple[int, Callable[[], None]]] = deque()
        self._numbers = itertools.count(1)
        self._seldom = SeldomLog(log)

    def open(self, scheduler: Scheduler, exchange: BlockExchange, *, serves: bool = True) -> None:
        """Hand blocks over from now on."""
        self.serves = serves
        self._scheduler = scheduler
        self._blocks = scheduler.blocks
        self._held = scheduler.blocks.held
        self._most_pinned = scheduler.blocks.pool.num_blocks // PINNED_SHARE
        self._room = scheduler.room
        self._exchange = exchange

    @property
    def is_idle(self) -> bool:
        return not self._pins

    # ------------------------------------------------------------------------------------------------ the gate

    def admits(self, request: EngineRequest) -> Verdict:
        if not (request.kv_source or self._fetches):
            return Verdict.ADMIT
        if self._exchange is None or request.params.prompt_logprobs is not None:
            request.kv_source = ""
            return Verdict.ADMIT
        size = self._blocks.block_size
        first, end = self._blocks.num_cached_tokens(request) // size, (request.num_tokens - 1) // size
        if self._num_coming(request.block_hashes[first:end]) * size >= MIN_TOKENS:
            self._waiting.append(request)
            return Verdict.SKIP
        return self._begin(request, self._exchange, first, end) if request.kv_source else Verdict.ADMIT

    def _num_coming(self, hashes: list[bytes]) -> int:
        """Return how many of these blocks, from the first on, are being fetched."""
        coming = itertools.takewhile(self._is_coming, hashes)
        return sum(1 for _ in coming)

    def _is_coming(self, block_hash: bytes) -> bool:
        return any(block_hash in fetch.coming for fetch in self._fetches.values())

    def _begin(self, request: EngineRequest, exchange: BlockExchange, first: int, end: int) -> Verdict:
        if self._room.admits(request) is not Verdict.ADMIT:
            return Verdict.ADMIT  # and BlockGate keeps it waiting
        size = self._blocks.block_size
        if (end - first) * size < MIN_TOKENS or self._avoids(request.kv_source):
            request.kv_source = ""
            return Verdict.ADMIT
        if len(self._fetches) >= MAX_FETCHES:
            self._waiting.append(request)
            return Verdict.SKIP
        cached = self._held.find(request.block_hashes, first)
        self._held.hold(cached)
        hashes = request.block_hashes[first:end]
        empty = self._held.hold_empty(end - first)
        fetch = _Fetch(request, hashes, frozenset(hashes), cached, empty, time.monotonic())
        number = next(self._numbers)
        self._fetches[number] = fetch
        source = request.kv_source
        self._when_computed(lambda: exchange.fetch(number, source, fetch.hashes, fetch.empty))
        return Verdict.SKIP

    def _avoid(self, source: str, seconds: float) -> None:
        now = time.monotonic()
        self._avoided = {each: end for each, end in self._avoided.items() if end > now}
        self._avoided[source] = now + max(MIN_AVOID_SECONDS, AVOID_TIMES * seconds)

    def _avoids(self, source: str) -> bool:
        return self._avoided.get(source, 0.0) > time.monotonic()

    # -------------------------------------------------------------------------------------- from the exchange

    def handle(self, event: HandOverEvent) -> None:
        match event:
            case PinWanted(session, hashes):
                self._pin(session, hashes)
            case PinReleased(session):
                self._unpin(session)
            case FetchEnded():
                self._end(event)

    def after_step(self) -> None:
        while self._postponed and self._scheduler.num_computed >= self._postponed[0][0]:
            self._postponed.popleft()[1]()

    def _when_computed(self, call: Callable[[], None]) -> None:
        # A step in flight may still write to these blocks.
        if self._scheduler.in_flight:
            self._postponed.append((self._scheduler.num_scheduled, call))
        else:
            call()

    def _pin(self, session: int, hashes: list[bytes]) -> None:
        room = max(0, self._most_pinned - self._num_pinned)
        block_ids = self._held.find(hashes, min(room, MAX_FETCH_BLOCKS))
        self._held.hold(block_ids)
        self._pins[session] = block_ids
        self._num_pinned += len(block_ids)
        self._when_computed(lambda: self._send(session, hashes))

    def _send(self, session: int, hashes: list[bytes]) -> None:
        # NaN in a step may have dropped blocks from the cache.
        block_ids = self._pins.get(session)
        if block_ids is not None and self._exchange is not None:
            found = self._held.find(hashes, len(block_ids))
            self._exchange.pinned(session, found if found == block_ids[: len(found)] else [])

    def _unpin(self, session: int) -> None:
        block_ids = self._pins.pop(session, [])
        self._num_pinned -= len(block_ids)
        self._held.release(block_ids)
        self._scheduler.reconsider()

    def _end(self, event: FetchEnded) -> None:
        """Cache the fetched blocks and wake the request."""
        fetch = self._fetches.pop(event.fetch)
        count = event.num_blocks
        self.num_fetched_blocks += count
        self._held.store(fetch.hashes[:count], fetch.empty[:count])
        self._held.release(fetch.cached + fetch.empty)
        if event.problem:
            self.num_failed_fetches += 1
            self._seldom.warning(
                f"{count} of {len(fetch.hashes)} KV blocks of request {fetch.request.request_id} came from "
                f"{fetch.request.kv_source}, the rest is computed: {event.problem}",
                about=fetch.request.kv_source,
            )
        source, fetch.request.kv_source = fetch.request.kv_source, ""
        if event.problem and not count:
            self._avoid(source, time.monotonic() - fetch.began)
        waiting, self._waiting = self._waiting, []
        for request in (fetch.request, *waiting):
            self._scheduler.wake(request.request_id)

    def check_idle(self) -> None:
        held = {block_id for fetch in self._fetches.values() for block_id in fetch.cached + fetch.empty}
        held.update(block_id for block_ids in self._pins.values() for block_id in block_ids)
        if self._exchange is not None:
            assert self._held.num_blocks == len(held), f"{self._held.num_blocks - len(held)} KV blocks are held"
