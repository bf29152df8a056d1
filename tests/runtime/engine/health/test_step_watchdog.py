import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvasir.engine.health.step_trace import Moment, StepPhase, StepTrace
from kvasir.engine.health.step_watchdog import StepWatchdog, describe_batch
from kvasir.worker.step import ScheduledRow, StepInput
from runtime.fake_clock import FakeClock

WAIT = 60.0
BATCH = StepInput([], [], [ScheduledRow(f"request-{n}", 10 * n, 1, []) for n in range(5)])


class Armed(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.cleared = threading.Event()

    def clear(self) -> None:
        super().clear()
        self.cleared.set()


class Told(logging.Handler):
    """Log records as they come, for a thread that waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.came.set()


@pytest.fixture
def told() -> Iterator[Told]:
    handler = Told()
    logger = logging.getLogger("kvasir.engine.health.step_watchdog")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def watchdog_of(trace: StepTrace) -> StepWatchdog:
    return StepWatchdog(trace, rank=3)


def test_a_hanging_step_is_told_by_the_thread_that_watches(told: Told) -> None:
    trace = StepTrace(limit=0.01)
    trace.begin(41)
    trace.enter(StepPhase.EXECUTE, BATCH)
    watchdog = watchdog_of(trace)
    try:
        assert told.came.wait(WAIT)
        message = told.records[0].getMessage()
        assert message.startswith("rank 3: step 41 takes ")
        assert "in phase execute; 5 rows, 5 tokens, the longest request-4 (1 after 40 tokens), request-3" in message
        assert told.records[0].fields["step"] == 41  # type: ignore[attr-defined]
    finally:
        watchdog.close()


def test_the_place_of_an_overlapped_step_is_the_workers(told: Told) -> None:
    """The thread that makes the watchdog waits for the one that computes."""
    trace = StepTrace(limit=0.01)
    inside, let_go = threading.Event(), threading.Event()

    def hold() -> float:
        inside.set()
        assert let_go.wait(WAIT)
        return 0.0

    with ThreadPoolExecutor(1, thread_name_prefix="worker") as pool:
        step = pool.submit(StepTrace(clock=hold).begin, 1)  # some function of the package that takes long
        assert inside.wait(WAIT)
        trace.begin(1)
        trace.enter(StepPhase.EXECUTE, BATCH)
        watchdog = watchdog_of(trace)
        try:
            assert told.came.wait(WAIT)
            assert told.records[0].getMessage().endswith(" (begin)")
        finally:
            let_go.set()
            watchdog.close()
            step.result(WAIT)


def test_without_steps_it_sleeps_until_the_next_one() -> None:
    trace = StepTrace(limit=0.01)
    armed = trace.armed = Armed()
    watchdog = watchdog_of(trace)
    try:
        trace.begin(1)
        trace.end()
        assert armed.cleared.wait(WAIT)
        assert not armed.is_set()
        trace.begin(2)
        assert armed.is_set()
    finally:
        watchdog.close()
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


def test_a_step_is_logged_again_when_its_time_has_doubled(told: Told) -> None:
    clock = FakeClock()
    trace = StepTrace(limit=1e6, clock=clock)
    watchdog = watchdog_of(trace)
    watchdog._limit = 10.0
    moment = Moment(1, 0.0, StepPhase.SCHEDULE, 0.0)
    told_at = []
    for second in range(100):
        clock.now = float(second)
        before = len(told.records)
        watchdog.look(moment)
        if len(told.records) > before:
            told_at.append(second)
    watchdog.close()
    assert told_at == [10, 20, 40, 80]


def test_it_looks_again_no_later_than_a_limit_from_now(told: Told) -> None:
    clock = FakeClock()
    trace = StepTrace(limit=10.0, clock=clock)
    watchdog = watchdog_of(trace)
    moment = Moment(1, 0.0, StepPhase.SCHEDULE, 0.0)
    clock.now = 4.0
    assert watchdog.look(moment) == 6.0
    clock.now = 30.0
    assert watchdog.look(moment) == 10.0
    watchdog.close()


def test_the_batch_of_no_rows_is_told_too() -> None:
    assert describe_batch(StepInput(["a"], [], [])) == "0 rows, 0 tokens"
