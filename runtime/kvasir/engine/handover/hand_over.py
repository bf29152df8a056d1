"""The step loop's side of hand-overs: which blocks are read for other engines, and which requests wait for theirs.

A request may name an engine that has its blocks (AddRequest.kv_source). The gate gives it empty blocks and skips it
while the exchange fills them. Then they are in the prefix cache like computed ones.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kvasir.engine.handover.events import FetchEnded, HandOverEvent, PinReleased, PinWanted
from kvasir.engine.handover.messages import MAX_FETCH_BLOCKS
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.process.seldom_log import SeldomLog

MIN_TOKENS: Final = 64  # a shorter prefix is computed: that takes no longer than to ask for it
MAX_FETCHES: Final = 8  # at a time; further requests wait for one of them to end
# A source that sent nothing is not asked again for so many times as long as the fetch took: one that cannot be
# reached costs requests a sixth of their time at most, and one that was full is soon asked again.
AVOID_TIMES: Final = 5
MIN_AVOID_SECONDS: Final = 1.0  # so that requests that waited for the fetch do not wait again
PINNED_SHARE: Final = 2  # one block of so many may be pinned for other engines

log = logging.getLogger(__name__)


class BlockExchange(Protocol):
    def pinned(self, session: int, block_ids: list[int]) -> None: ...

    def fetch(self, number: int, source: str, hashes: list[bytes], block_ids: list[int]) -> None: ...


@dataclass(frozen=True)
class _Fetch:
    request: EngineRequest
    hashes: list[bytes]  # of the blocks that are fetched
    coming: frozenset[bytes]  # the same as a set
    cached: list[int]  # blocks of the prefix before them
    empty: list[int]  # the blocks to fill
    began: float  # time.monotonic()


class HandOver(AdmissionGate):
    """A gate that keeps requests waiting while their blocks are fetched. Without an exchange it admits every
    request.
    """

    def __init__(self) -> None:
        self.num_fetched_blocks = 0  # from other engines
        self.num_failed_fetches = 0
        self.serves = False  # other engines can fetch blocks of this one
        self._exchange: BlockExchange | None = None
        self._fetches: dict[int, _Fetch] = {}
        # requests that wait for the end of a fetch: one of MAX_FETCHES, or the one that has their blocks
        self._waiting: list[EngineRequest] = []
        self._avoided: dict[str, float] = {}  # sources that sent nothing, and until when they are not asked
        self._pins: dict[int, list[int]] = {}
        self._num_pinned = 0
        # calls for when so many steps are computed
        self._postponed: deque[tuple[int, Callable[[], None]]] = deque()
        self._numbers = itertools.count(1)
        self._seldom = SeldomLog(log)

    def open(self, scheduler: Scheduler, exchange: BlockExchange, *, serves: bool = True) -> None:
        """Hand blocks over from now on. `serves`: other engines can reach the exchange."""
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
        """Return how many of these blocks, from the first one on, are fetched now."""
        coming = itertools.takewhile(self._is_coming, hashes)
        return sum(1 for _ in coming)

    def _is_coming(self, block_hash: bytes) -> bool:
        return any(block_hash in fetch.coming for fetch in self._fetches.values())

    def _begin(self, request: EngineRequest, exchange: BlockExchange, first: int, end: int) -> Verdict:
        # Not if the other gates keep the request waiting, or for a few blocks.
        if self._room.admits(request) is not Verdict.ADMIT:
            return Verdict.ADMIT  # the gate for blocks lets it wait
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
        # `seconds`: how long a fetch has waited for it in vain
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
        # A step in flight may still fill a cached block, or use a block that has just become free.
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
        # A step whose results were not numbers may have dropped the blocks.
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
        """Put the blocks that came into the prefix cache, and consider the request again."""
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
        """Raise AssertionError if a block is held for no fetch and no other engine."""
        held = {block_id for fetch in self._fetches.values() for block_id in fetch.cached + fetch.empty}
        held.update(block_id for block_ids in self._pins.values() for block_id in block_ids)
        if self._exchange is not None:
            assert self._held.num_blocks == len(held), f"{self._held.num_blocks - len(held)} KV blocks are held"
