import logging
import time

import pytest

from kvasir.process.seldom_log import SeldomLog

log = logging.getLogger(__name__)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_line_is_written_once_in_a_while(lines: pytest.LogCaptureFixture, clock: list[float]) -> None:
    seldom = SeldomLog(log, every=60)
    for _ in range(3):
        seldom.info("no answer")
        seldom.warning("7 bytes", about="size")
        seldom.warning("8 bytes", about="size")
    assert lines.messages == ["no answer", "7 bytes"]
    clock[0] += 60
    seldom.warning("9 bytes", about="size")
    assert lines.messages[2:] == ["9 bytes"]


def test_the_kinds_of_lines_are_bounded(lines: pytest.LogCaptureFixture, clock: list[float]) -> None:
    seldom = SeldomLog(log, kinds=3)
    for number in (1, 2, 3, 3, 4, 3):
        seldom.info(f"peer {number}")
    assert lines.messages == ["peer 1", "peer 2", "peer 3", "peer 4", "peer 3"]
    assert len(seldom._last) <= 3
