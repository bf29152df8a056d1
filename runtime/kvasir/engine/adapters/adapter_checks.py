"""AdapterChecks: fetches adapters and compares their files with the digests of requests, in threads."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kvasir.hub.adapters.adapter_info import AdapterInfo, stamp_of
from kvasir.hub.hub_errors import DownloadFailed, HubError
from kvasir.link.protocol import RefusalKind
from kvasir.request.adapter import Adapter

log = logging.getLogger(__name__)

MAX_CHECKING: Final = 4  # downloads share a network
SLOW_SECONDS: Final = 10.0  # then a check does not count in MAX_CHECKING: it may be stalled
MAX_CHECK_SECONDS: Final = 600.0  # then its requests may try another engine
MAX_THREADS: Final = 64


@dataclass(frozen=True)
class CheckedAdapter:
    adapter: Adapter
    path: Path
    stamp: tuple[int, ...]
    num_numbers: int  # see AdapterInfo

    @property
    def is_current(self) -> bool:
        return stamp_of(self.path) == self.stamp


@dataclass(frozen=True)
class FailedAdapter:
    adapter: Adapter
    reason: str
    refusal: RefusalKind = RefusalKind.ADAPTER_UNFIT


class _Check:
    def __init__(self) -> None:
        self.is_counted = True  # in MAX_CHECKING
        self.has_ended = False


class AdapterChecks:
    """A check that takes long no longer delays others, and fails in the end; its thread cannot be ended."""

    def __init__(self, read: Callable[[str], AdapterInfo], notify: Callable[[], None] | None = None) -> None:
        # `read` gets a source. `notify` is called in any thread after each check; None: `begin` waits.
        self._read = read
        self._notify = notify
        self._lock = threading.Lock()
        self._pending: deque[Adapter] = deque()
        self._num_counted = self._num_threads = 0
        self._timers: dict[_Check, threading.Timer] = {}
        self._done: queue.SimpleQueue[CheckedAdapter | FailedAdapter] = queue.SimpleQueue()

    def begin(self, adapter: Adapter) -> None:
        """Check an adapter; `take` returns the outcome."""
        if self._notify is None:
            self._done.put(self._outcome(adapter))
            return
        with self._lock:
            self._pending.append(adapter)
            self._start_pending()

    def take(self) -> CheckedAdapter | FailedAdapter | None:
        try:
            return self._done.get_nowait()
        except queue.Empty:
            return None

    @property
    def has_outcomes(self) -> bool:
        return not self._done.empty()

    def close(self) -> None:
        with self._lock:
            self._pending.clear()
            for timer in self._timers.values():
                timer.cancel()

    def _start_pending(self) -> None:
        while self._pending and self._num_counted < MAX_CHECKING and self._num_threads < MAX_THREADS:
            self._num_counted += 1
            self._num_threads += 1
            check, adapter = _Check(), self._pending.popleft()
            self._set_timer(check, SLOW_SECONDS, partial(self._is_slow, check, adapter))
            threading.Thread(target=self._run, args=(check, adapter), name="adapter", daemon=True).start()
        while self._pending and self._num_threads >= MAX_THREADS:  # all may be stalled, and threads cannot be ended
            adapter = self._pending.popleft()
            reason = f"the adapter {adapter.name!r} could not be fetched: {MAX_THREADS} other downloads do not end"
            self._end(FailedAdapter(adapter, reason, RefusalKind.ADAPTER_UNREAD))

    def _run(self, check: _Check, adapter: Adapter) -> None:
        outcome = self._outcome(adapter)
        with self._lock:
            self._num_threads -= 1
            self._timers.pop(check).cancel()
            self._uncount(check)
            if check.has_ended:
                return
        self._end(outcome)

    def _is_slow(self, check: _Check, adapter: Adapter) -> None:
        with self._lock:
            if check not in self._timers:
                return
            self._set_timer(check, MAX_CHECK_SECONDS - SLOW_SECONDS, partial(self._give_up, check, adapter))
            self._uncount(check)

    def _give_up(self, check: _Check, adapter: Adapter) -> None:
        with self._lock:
            if check not in self._timers or check.has_ended:
                return
            check.has_ended = True
        reason = f"the adapter {adapter.name!r} could not be fetched within {MAX_CHECK_SECONDS:g} s"
        self._end(FailedAdapter(adapter, reason, RefusalKind.ADAPTER_UNREAD))

    def _uncount(self, check: _Check) -> None:
        if check.is_counted:
            check.is_counted = False
            self._num_counted -= 1
        self._start_pending()

    def _set_timer(self, check: _Check, seconds: float, call: Callable[[], None]) -> None:
        timer = self._timers[check] = threading.Timer(seconds, call)
        timer.daemon = True
        timer.start()

    def _end(self, outcome: CheckedAdapter | FailedAdapter) -> None:
        self._done.put(outcome)
        if self._notify is not None:
            self._notify()

    def _outcome(self, adapter: Adapter) -> CheckedAdapter | FailedAdapter:
        where = f"the adapter {adapter.name!r}"
        try:
            info = self._read(adapter.source)
        except DownloadFailed as error:
            return FailedAdapter(adapter, f"{where} could not be fetched: {error}", RefusalKind.ADAPTER_UNREAD)
        except HubError as error:
            return FailedAdapter(adapter, f"{where} cannot be used: {error}")
        except Exception as error:  # a defect must end the adapter's requests only
            log.exception("checking the adapter %s has failed", adapter.name)
            return FailedAdapter(adapter, f"{where} could not be checked: {error}", RefusalKind.ADAPTER_UNREAD)
        if info.digest != adapter.digest:
            return FailedAdapter(
                adapter, f"{where} at {adapter.source} has changed since it was named: load it again"
            )
        return CheckedAdapter(adapter, info.path, info.stamp, info.num_numbers)
