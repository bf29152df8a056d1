"""AdapterGate: a request with an adapter gets a row when a slot of the step holds the adapter.

A slot is given to the adapter whose request waits the longest, and kept while requests use it. After
MAX_WAIT_SECONDS of another adapter's wait, one slot takes no further rows, so every adapter gets its turn.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from kvasir.engine.adapters.adapter_checks import FailedAdapter
from kvasir.engine.adapters.adapter_memory import AdapterMemory, Needs
from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.request.adapter import Adapter

# The rows of a slot that closes are not replaced until it is free.
MAX_WAIT_SECONDS: Final = 1.0


class AdapterGate(AdmissionGate):
    def __init__(
        self,
        memory: AdapterMemory,
        slots: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.memory = memory
        self.wake: Callable[[str], None] = lambda request_id: None  # the core sets it: Scheduler.wake
        self._clock = clock
        self._free = list(range(slots))  # free for the longest first
        self._slot_of: dict[str, int] = {}  # by digest
        self._rows: Counter[str] = Counter()
        self._waiting: dict[str, dict[str, EngineRequest]] = {}  # requests without a row, by digest and id
        self._asked: set[EngineRequest] = set()  # of those: all other gates have admitted them
        self._closing: str | None = None
        self._last_grant = clock()
        self._placed: dict[int, str] = {}  # what workers have in each slot
        self._changes: list[tuple[int, str]] = []
        memory.on_drop = self._dropped

    # ------------------------------------------------------------------------------------------------ as a gate

    def arrive(self, request: EngineRequest) -> None:
        """Begin to load the adapter of a request that is queued."""
        if request.core.adapter is not None:
            self._wait(request)

    def admits(self, request: EngineRequest) -> Verdict:
        digest = request.core.adapter_digest
        if not digest:
            return Verdict.ADMIT
        self._asked.add(request)
        if digest not in self._slot_of and self._free and self.memory.is_near(digest):
            self._grant()
        has_slot = digest in self._slot_of and digest != self._closing
        return Verdict.ADMIT if has_slot and self.memory.holds(digest) else Verdict.SKIP

    def took(self, request: EngineRequest) -> None:
        digest = request.core.adapter_digest
        if not digest:
            return
        self._stop_waiting(request)
        slot = request.slot = self._slot_of[digest]
        self._rows[digest] += 1
        self.memory.used(digest)
        if self._placed.get(slot) != digest:
            self._placed[slot] = digest
            self._changes.append((slot, digest))
        if (
            self._closing is None
            and self._clock() - self._last_grant > MAX_WAIT_SECONDS
            and (self._next() is not None or self._lacks_memory())
        ):
            in_use = [each for each in self._slot_of if self._rows[each]]
            self._closing = min(in_use, key=lambda each: self._rows[each])

    def left(self, request: EngineRequest) -> None:
        digest = request.core.adapter_digest
        if digest:
            self._rows[digest] -= 1
            self._wait(request)
            self._asked.add(request)
            self._free_unused(digest)

    def ended(self, request: EngineRequest) -> None:
        if request.core.adapter_digest:
            self._stop_waiting(request)
            self._free_unused(request.core.adapter_digest)
            if request.core.adapter_digest not in self._needs():
                self.memory.unwanted(request.core.adapter_digest)

    def check_idle(self) -> None:
        assert not any(self._rows.values()), f"rows of adapters are counted and there are none: {self._rows}"

    # ---------------------------------------------------------------------------------------------- for the core

    @property
    def has_work(self) -> bool:
        return self.memory.has_work(self._needs())

    def work(self) -> FailedAdapter | None:
        """Do a piece of loading. Return a failure, whose requests `waiting_for_source` lists."""
        outcome = self.memory.work(self._needs())
        if isinstance(outcome, FailedAdapter):
            self._try_other_source(outcome.adapter)
            return outcome
        self._grant()
        if outcome is not None:
            self._wake(outcome.digest)
        return None

    def waiting_for_source(self, adapter: Adapter) -> list[EngineRequest]:
        waiting = self._waiting.get(adapter.digest, {}).values()
        return [each for each in waiting if each.core.adapter and each.core.adapter.source == adapter.source]

    def take_changes(self) -> tuple[tuple[int, str], ...]:
        """Return the adapters to put into slots before the next step's rows."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def close(self) -> None:
        self.memory.close()

    # ------------------------------------------------------------------------------------------------------ slots

    def _grant(self) -> None:
        while self._free and (digest := self._next()) is not None:
            slot = next((slot for slot in self._free if self._placed.get(slot) == digest), self._free[0])
            self._free.remove(slot)
            self._slot_of[digest] = slot
            self._last_grant = self._clock()
            self._wake(digest)

    def _next(self) -> str | None:
        """Return the adapter without a slot whose request is served first, of those that can be read at once."""
        asked = [each for each in self._asked if each.core.adapter_digest not in self._slot_of]
        near = [each for each in asked if self.memory.is_near(each.core.adapter_digest)]
        first = min(near, key=lambda each: each.rank, default=None)
        return None if first is None else first.core.adapter_digest

    def _lacks_memory(self) -> bool:
        # the adapters in other slots leave no room for one in a slot
        return not (all(map(self.memory.holds, self._slot_of)) or self.memory.has_work(self._needs()))

    def _free_unused(self, digest: str) -> None:
        if self._rows[digest] or digest not in self._slot_of:
            return
        if digest != self._closing and not self._asked.isdisjoint(self._waiting.get(digest, {}).values()):
            return
        del self._rows[digest]
        self._free.append(self._slot_of.pop(digest))
        if digest == self._closing:
            self._closing = None
        self._grant()

    def _wait(self, request: EngineRequest) -> None:
        adapter = request.core.adapter
        assert adapter is not None
        self._waiting.setdefault(adapter.digest, {})[request.request_id] = request
        self.memory.want(adapter)

    def _stop_waiting(self, request: EngineRequest) -> None:
        digest = request.core.adapter_digest
        self._asked.discard(request)
        waiting = self._waiting.get(digest, {})
        if waiting.get(request.request_id) is request:
            del waiting[request.request_id]
            if not waiting:
                del self._waiting[digest]

    def _wake(self, digest: str) -> None:
        for request in [*self._waiting.get(digest, {}).values()]:
            self.wake(request.request_id)

    def _try_other_source(self, failed: Adapter) -> None:
        others = [each.core.adapter for each in self._waiting.get(failed.digest, {}).values()]
        other = next((each for each in others if each and each.source != failed.source), None)
        if other is not None:
            self.memory.want(other)

    def _dropped(self, digest: str) -> None:
        self._placed = {slot: placed for slot, placed in self._placed.items() if placed != digest}

    def _needs(self) -> Needs:
        return Needs(self._slot_of.keys(), self._waiting.keys())
