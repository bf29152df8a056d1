"""A download that does not end delays neither other adapters nor, for ever, its own requests."""

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir.engine.adapters.adapter_checks import (
    MAX_CHECK_SECONDS,
    MAX_CHECKING,
    MAX_THREADS,
    SLOW_SECONDS,
    AdapterChecks,
    CheckedAdapter,
    FailedAdapter,
)
from kvasir.hub.adapters.adapter_config import AdapterConfig
from kvasir.hub.adapters.adapter_info import AdapterInfo
from kvasir.hub.hub_errors import DownloadFailed
from kvasir.link.protocol import RefusalKind
from kvasir.request.adapter import Adapter


class Timer:
    """Ends when the test calls `function`."""

    started: "list[Timer]"

    def __init__(self, interval: float, function: Callable[[], None]) -> None:
        self.interval, self.function = interval, function
        self.daemon = False

    def start(self) -> None:
        self.started.append(self)

    def cancel(self) -> None:
        pass


def test_checks_above_the_threads_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Timer.started = []
    monkeypatch.setattr(threading, "Timer", Timer)
    may_end, begun, ended = threading.Event(), queue.SimpleQueue[None](), queue.SimpleQueue[None]()

    def read(source: str) -> AdapterInfo:
        begun.put(None)
        may_end.wait()
        raise DownloadFailed("stalled")

    checks = AdapterChecks(read, lambda: ended.put(None))
    for number in range(MAX_THREADS):
        checks.begin(Adapter(str(number), str(number), str(number)))
        begun.get(timeout=10)
        Timer.started[-1].function()
    checks.begin(Adapter("late", "late", "late"))
    ended.get(timeout=10)
    failed = checks.take()
    assert isinstance(failed, FailedAdapter)
    assert (failed.adapter.name, failed.refusal) == ("late", RefusalKind.ADAPTER_UNREAD)
    may_end.set()
    for _ in range(MAX_THREADS):
        ended.get(timeout=10)


def test_stalled_downloads_delay_no_others_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    Timer.started = []
    monkeypatch.setattr(threading, "Timer", Timer)
    may_end, begun, ended = threading.Event(), queue.SimpleQueue[str](), queue.SimpleQueue[None]()
    config = AdapterConfig(4, 8, "", {}, {}, use_rslora=False)

    def read(source: str) -> AdapterInfo:
        begun.put(source)
        if source.startswith("stalled"):
            may_end.wait()
        return AdapterInfo(source, Path("/nowhere"), source, config, {})

    checks = AdapterChecks(read, lambda: ended.put(None))
    stalled = [f"stalled {number}" for number in range(MAX_CHECKING)]
    for name in [*stalled, "good"]:
        checks.begin(Adapter(name, name, name))
    assert {begun.get(timeout=10) for _ in stalled} == {*stalled}
    slow = [*Timer.started]
    assert [timer.interval for timer in slow] == [SLOW_SECONDS] * MAX_CHECKING
    slow[0].function()
    ended.get(timeout=10)
    found = checks.take()
    assert isinstance(found, CheckedAdapter)
    assert found.adapter.name == "good"
    last = next(timer for timer in Timer.started if timer.interval == MAX_CHECK_SECONDS - SLOW_SECONDS)
    last.function()
    failed = checks.take()
    assert isinstance(failed, FailedAdapter)
    assert (failed.adapter.name, failed.refusal) == (stalled[0], RefusalKind.ADAPTER_UNREAD)
    may_end.set()
    for _ in stalled:  # one that has failed sends no second outcome
        ended.get(timeout=10)
    assert all(checks.take() for _ in stalled[1:])
    assert checks.take() is None
    for number in range(2 * MAX_CHECKING):  # all of them have made room
        checks.begin(Adapter(str(number), str(number), str(number)))
    for _ in range(2 * MAX_CHECKING):
        ended.get(timeout=10)
    checks.close()
