"""AdapterMemory: the adapters in the workers' memory; the least recently used ones make room.

All methods belong to the loop's thread. Steps go on while adapters are fetched and checked, and wait for pieces of
some milliseconds while workers read them.
"""

import logging
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

from kvasir.engine.adapters.adapter_checks import AdapterChecks, CheckedAdapter, FailedAdapter
from kvasir.executor.executor import Executor
from kvasir.link.protocol import AdaptersHeld, RefusalKind
from kvasir.process import words
from kvasir.request.adapter import Adapter
from kvasir.worker.worker_calls import WorkerCall

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Needs:
    """The adapters that requests need, by digest."""

    in_slots: Collection[str]  # never evicted
    waited_for: Collection[str]  # evicted only for one in a slot

    def __contains__(self, digest: str) -> bool:
        return digest in self.in_slots or digest in self.waited_for


class AdapterMemory:
    def __init__(
        self,
        executor: Executor,
        checks: AdapterChecks,
        most: int,
        *,
        most_bytes: int = sys.maxsize,
        item_bytes: int = 4,
    ) -> None:
        """`most`: adapters. `most_bytes`: of all together, with `item_bytes` for each number."""
        self._executor = executor
        self._checks = checks
        self._most = most
        self._most_bytes = most_bytes
        self._item_bytes = item_bytes
        self._checking: set[str] = set()
        self._checked: dict[str, CheckedAdapter] = {}  # not held; the one that is being read first
        self._begun: set[str] = set()  # of these, with pieces in workers
        self._held: dict[str, CheckedAdapter] = {}  # the most recently used last
        self.on_change: Callable[[AdaptersHeld], None] = lambda held: None
        self.on_drop: Callable[[str], None] = lambda digest: None

    def holds(self, digest: str) -> bool:
        return digest in self._held

    def is_near(self, digest: str) -> bool:
        """Return whether the adapter is held or could be read at once."""
        return digest in self._held or digest in self._checked

    def want(self, adapter: Adapter) -> None:
        """Begin to load an adapter, unless it is near."""
        if not self.is_near(adapter.digest) and adapter.digest not in self._checking:
            self._checking.add(adapter.digest)
            self._checks.begin(adapter)

    def unwanted(self, digest: str) -> None:
        """Give up an adapter that is not held, because no request waits for it any more."""
        if digest in self._begun:
            self._drop(digest)
        self._checked.pop(digest, None)

    def used(self, digest: str) -> None:
        self._held[digest] = self._held.pop(digest)

    def has_work(self, needs: Needs) -> bool:
        return self._checks.has_outcomes or self._next(needs) is not None

    def work(self, needs: Needs) -> "Adapter | FailedAdapter | None":
        """Read a piece of an adapter. Return the adapter if it is complete, or a failure."""
        while (outcome := self._checks.take()) is not None:
            self._checking.discard(outcome.adapter.digest)
            if outcome.adapter.digest not in needs:
                continue  # its requests were aborted
            if isinstance(outcome, FailedAdapter):
                return outcome
            if (num_bytes := self._bytes_of(outcome)) > self._most_bytes:
                return _too_large(outcome.adapter, num_bytes, self._most_bytes)
            self._checked[outcome.adapter.digest] = outcome
        found = self._next(needs)
        if found is None:
            return None
        chosen, victims = found
        if not chosen.is_current:
            self._check_again(chosen)
            return None
        for victim in victims:
            dropped = self._held[victim]
            self._drop(victim)
            if victim in needs.waited_for:
                self._checked[victim] = dropped
        return self._read(chosen)

    def close(self) -> None:
        self._checks.close()

    def _bytes_of(self, checked: CheckedAdapter) -> int:
        return checked.num_numbers * self._item_bytes

    def _has_room(self, chosen: CheckedAdapter, victims: Collection[str]) -> bool:
        kept = [each for digest, each in self._held.items() if digest not in victims]
        return len(kept) < self._most and sum(map(self._bytes_of, [*kept, chosen])) <= self._most_bytes

    def _next(self, needs: Needs) -> tuple[CheckedAdapter, list[str]] | None:
        """Return the adapter to read next, and those that make room for it."""
        if not self._checked:
            return None
        urgent = (each for each in self._checked if each in needs.in_slots)
        digest = next(urgent, None) or next(iter(self._checked))
        chosen = self._checked[digest]
        victims = [each for each in self._held if each not in needs]
        if digest in needs.in_slots:
            victims += [each for each in self._held if each in needs.waited_for and each not in needs.in_slots]
        fewest = (count for count in range(len(victims) + 1) if self._has_room(chosen, victims[:count]))
        count = next(fewest, None)
        return None if count is None else (chosen, victims[:count])

    def _read(self, checked: CheckedAdapter) -> "Adapter | FailedAdapter | None":
        adapter = checked.adapter
        call = WorkerCall.of("load_adapter", digest=adapter.digest, path=str(checked.path))
        self._begun.add(adapter.digest)
        results = self._executor.call(call)
        error = next((each.error for each in results if each.error), "")
        if error:
            self._drop(adapter.digest)
            return _failed(adapter, error)
        if not all(each.value for each in results):
            return None
        if not checked.is_current:  # the last piece may be of other files
            self._check_again(checked)
            return None
        del self._checked[adapter.digest]
        self._begun.discard(adapter.digest)
        self._held[adapter.digest] = checked
        mebibytes = sum(map(self._bytes_of, self._held.values())) / 2**20
        log.info(
            "the adapter %s (%s) is loaded: %s, %.0f MiB",
            *(adapter.name, adapter.source, words.count(len(self._held), "adapter"), mebibytes),
        )
        self._changed()
        return adapter

    def _check_again(self, changed: CheckedAdapter) -> None:
        self._drop(changed.adapter.digest)  # workers may have pieces of the old files
        self.want(changed.adapter)

    def _drop(self, digest: str) -> None:
        self._checked.pop(digest, None)
        self._begun.discard(digest)
        was_held = self._held.pop(digest, None)
        self._executor.call(WorkerCall.of("drop_adapter", digest=digest))
        if was_held is not None:
            self.on_drop(digest)
            self._changed()

    def _changed(self) -> None:
        self.on_change(AdaptersHeld(tuple(each.adapter for each in self._held.values())))


def _too_large(adapter: Adapter, num_bytes: int, most: int) -> FailedAdapter:
    return FailedAdapter(
        adapter,
        f"the adapter {adapter.name!r} takes {num_bytes / 2**20:.0f} MiB of memory, and adapters may take "
        f"{most / 2**20:.0f} MiB in this engine: raise its memory limit",
    )


def _failed(adapter: Adapter, error: str) -> FailedAdapter:
    # `error` begins with its class
    kind, _, reason = error.partition(": ")
    if kind == "UnfitAdapter":
        return FailedAdapter(adapter, f"the adapter {adapter.name!r} does not fit this model: {reason}")
    if kind == "HubError":
        return FailedAdapter(adapter, f"the adapter {adapter.name!r} cannot be used: {reason}")
    return FailedAdapter(
        adapter, f"the adapter {adapter.name!r} could not be read: {error}", RefusalKind.ADAPTER_UNREAD
    )
