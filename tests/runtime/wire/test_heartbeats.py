import pytest

from kvasir.wire.heartbeats import HeartbeatClock


def test_clock_reports_only_time_that_blocked_the_process() -> None:
    clock = HeartbeatClock(10.0, 100.0)
    assert clock.due == 101.0
    assert clock.tick(101.9) == 0.0  # less than an interval late
    assert clock.due == pytest.approx(102.9)
    assert clock.tick(107.9) == pytest.approx(5.0)
    assert clock.due == pytest.approx(108.9)


def test_clock_beats_several_times_within_a_short_timeout() -> None:
    assert HeartbeatClock(2.0, 0.0).due == 0.5
