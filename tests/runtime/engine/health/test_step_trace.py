"""Where a step stands, and the counters that the metrics read."""

import pytest

from kvasir.engine.health.step_trace import Buckets, StepPhase, StepTrace
from kvasir.worker.step import ScheduledRow, StepInput
from runtime.fake_clock import FakeClock

BATCH = StepInput([], [], [ScheduledRow("a", 0, 5, []), ScheduledRow("b", 7, 1, [])])


@pytest.fixture
def trace(clock: FakeClock) -> StepTrace:
    return StepTrace(limit=10.0, clock=clock)


def run_step(trace: StepTrace, clock: FakeClock, seconds: float, batch: StepInput | None = BATCH) -> None:
    """A step whose computation takes this long, and every other phase a second."""
    trace.begin(1)
    clock.now += 1
    if batch is not None:
        trace.enter(StepPhase.EXECUTE, batch)
        clock.now += seconds
    for phase in (StepPhase.UPDATE, StepPhase.SEND):
        trace.enter(phase)
        clock.now += 1
    trace.end()


def test_each_phase_is_credited_with_its_own_time(trace: StepTrace, clock: FakeClock) -> None:
    run_step(trace, clock, 5.0)
    assert trace.phase_seconds == {"schedule": 1.0, "execute": 5.0, "update": 1.0, "send": 1.0, "wave": 0.0}
    assert trace.seconds.sum == 8.0
    assert trace.now is None


def test_a_batch_is_counted_by_its_rows_and_tokens(trace: StepTrace, clock: FakeClock) -> None:
    run_step(trace, clock, 1.0)
    run_step(trace, clock, 1.0, batch=None)
    assert (trace.requests.sum, sum(trace.requests.counts)) == (2, 1)
    assert (trace.tokens.sum, sum(trace.tokens.counts)) == (6, 1)
    assert sum(trace.seconds.counts) == 2


def test_the_current_moment_tells_step_phase_and_batch(trace: StepTrace, clock: FakeClock) -> None:
    trace.begin(7)
    clock.now = 3.0
    trace.enter(StepPhase.EXECUTE, BATCH)
    assert trace.now == (7, 0.0, StepPhase.EXECUTE, 3.0, BATCH)


def test_a_core_that_is_driven_by_hand_leaves_no_trace(trace: StepTrace) -> None:
    trace.enter(StepPhase.EXECUTE, BATCH)
    assert trace.now is None
    assert sum(trace.requests.counts) == 0


def test_a_slow_step_is_told_when_it_ends(
    trace: StepTrace, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    run_step(trace, clock, 6.0)
    assert not caplog.messages
    run_step(trace, clock, 60.0)
    assert caplog.messages == ["step 1 ended after 63.0 s"]


def test_buckets_hold_values_up_to_their_bound() -> None:
    buckets = Buckets((1, 10))
    for value in (0.5, 1, 1.5, 10, 11):
        buckets.observe(value)
    assert (buckets.counts, buckets.sum) == ([2, 2, 1], 24.0)
