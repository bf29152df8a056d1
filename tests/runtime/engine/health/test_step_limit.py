"""How long a step may take before the engine counts as stuck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.engine.health.engine_status import StepLimit
from kvasir.engine.health.step_trace import StepPhase, StepTrace
from kvasir.worker.step import ScheduledRow, StepInput
from runtime.fake_clock import FakeClock

TIMEOUT, LEAST, MOST = 10.0, 30.0, 120.0
BUDGET = 1000


def run(trace: StepTrace, clock: FakeClock, seconds: float, tokens: int) -> None:
    trace.begin(1)
    trace.enter(StepPhase.EXECUTE, StepInput([], [], [ScheduledRow("a", 0, tokens, [])] if tokens else []))
    clock.now += seconds
    trace.end()


@pytest.fixture
def trace(clock: FakeClock) -> StepTrace:
    return StepTrace(clock=clock)


def limit_of(trace: StepTrace) -> StepLimit:
    limit = StepLimit(trace, TIMEOUT)
    limit.begin(BUDGET)
    return limit


@pytest.mark.parametrize(
    ("steps", "limit"),
    [
        ([], MOST),  # nothing is known
        ([(0.1, 1)], MOST),  # a whole budget at this rate would take 100 s
        ([(0.1, 1), (0.1, 1000)], LEAST),  # a large batch is fast
        ([(0.1, 1), (5.0, 1000)], 50.0),
        ([(2.0, 400)], 50.0),  # a whole budget at this rate would take 5 s
        ([(5.0, 1000), (0.001, 0)], 50.0),  # a step without rows shows nothing
        ([(0.1, 1000), (7.0, 100)], 70.0),  # the longest one counts, also with a small batch
        ([(90.0, 1000)], MOST),
    ],
)
def test_the_limit_follows_the_longest_step_to_be_expected(
    trace: StepTrace, clock: FakeClock, steps: list[tuple[float, int]], limit: float
) -> None:
    following = limit_of(trace)
    for seconds, tokens in steps:
        run(trace, clock, seconds, tokens)
    assert following() == pytest.approx(limit)


def test_the_limit_of_overlapped_steps_is_the_highest(trace: StepTrace, clock: FakeClock) -> None:
    limit = StepLimit(trace, TIMEOUT)
    run(trace, clock, 0.1, BUDGET)
    assert limit() == MOST


@given(st.lists(st.tuples(st.floats(0, 500), st.integers(0, BUDGET))))
def test_the_limit_is_bounded_and_never_below_a_step_that_ended(steps: list[tuple[float, int]]) -> None:
    clock = FakeClock()
    trace = StepTrace(clock=clock)
    limit = limit_of(trace)
    for seconds, tokens in steps:
        run(trace, clock, seconds, tokens)
        assert LEAST <= limit() <= MOST
    assert limit() >= min(MOST, max((seconds for seconds, _ in steps), default=0))
