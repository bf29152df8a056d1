"""AdapterChecks: fetches adapters and compares their files with the digests of requests, in threads."""

import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir.hub.adapters.adapter_info import AdapterInfo, stamp_of
from kvasir.hub.hub_errors import DownloadFailed, HubError
from kvasir.link.protocol import RefusalKind
from kvasir.request.adapter import Adapter

log = logging.getLogger(__name__)

MAX_CHECKING: Final = 2  # threads; downloads share a network


@dataclass(frozen=True)
class CheckedAdapter:
    adapter: Adapter
    path: Path
    stamp: tuple[int, ...]

    @property
    def is_current(self) -> bool:
        return stamp_of(self.path) == self.stamp


@dataclass(frozen=True)
class FailedAdapter:
    adapter: Adapter
    reason: str
    refusal: RefusalKind = RefusalKind.ADAPTER_UNFIT


class AdapterChecks:
    def __init__(self, read: Callable[[str], AdapterInfo], notify: Callable[[], None] | None = None) -> None:
        # `read` gets a source. `notify` is called in any thread after each check; None: `begin` waits.
        self._read = read
        self._notify = notify
        self._threads = None if notify is None else ThreadPoolExecutor(MAX_CHECKING, "adapter")
        self._done: queue.SimpleQueue[CheckedAdapter | FailedAdapter] = queue.SimpleQueue()

    def begin(self, adapter: Adapter) -> None:
        """Check an adapter; `take` returns the outcome."""
        if self._threads is None:
            self._check(adapter)
        else:
            self._threads.submit(self._check, adapter)

    def take(self) -> CheckedAdapter | FailedAdapter | None:
        try:
            return self._done.get_nowait()
        except queue.Empty:
            return None

    @property
    def has_outcomes(self) -> bool:
        return not self._done.empty()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, adapter: Adapter) -> None:
        self._done.put(self._outcome(adapter))
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
        return CheckedAdapter(adapter, info.path, info.stamp)
