from dataclasses import replace

import pytest

from kvasir_operator.autoscaler.load_history import (
    MAX_REMEMBERED_SECONDS,
    STALE_SECONDS,
    LoadHistory,
    ScalingDecision,
)
from kvasir_operator.autoscaler.load_sample import LoadSample
from kvasir_operator.autoscaling_spec import AutoscalingSpec, LoadTargets

SPEC = AutoscalingSpec(1, 8, targets=LoadTargets(queue_seconds=2.0), scale_down_after=120.0)
CALM = LoadSample(2, 30, 30, 0, 4, 0.0, 0.1, 0.1)
BUSY = replace(CALM, waiting=8, running=16, queue_seconds=9.0, arrived=60)
POLL = 5


def after(
    history: LoadHistory,
    sample: LoadSample,
    seconds: float,
    *,
    since: float = 0.0,
    ranks: int = 2,
    spec: AutoscalingSpec = SPEC,
) -> LoadHistory:
    """Return the history after `seconds` with this sample every POLL seconds."""
    for passed in range(0, int(seconds) + 1, POLL):
        history = history.with_sample(spec, sample, ranks, since + passed)
    return history


def decided(history: LoadHistory, now: float, *, ranks: int = 2, spec: AutoscalingSpec = SPEC) -> int:
    return history.decide(spec, ranks, now).ranks


def test_a_new_history_changes_nothing_for_a_window() -> None:
    assert decided(LoadHistory(), 0.0) == 2
    assert decided(after(LoadHistory(), BUSY, 25.0), 25.0) == 2
    assert decided(after(LoadHistory(), BUSY, 30.0), 30.0) == 3
    assert decided(after(LoadHistory(), CALM, 145.0), 145.0) == 2
    assert decided(after(LoadHistory(), CALM, 150.0), 150.0) == 1  # 30 s, then scaleDownAfter


def test_without_samples_the_number_stays() -> None:
    history = after(LoadHistory(), BUSY, 60.0)
    assert decided(history, 60.0 + STALE_SECONDS) == 3
    assert decided(history, 61.0 + STALE_SECONDS) == 2
    assert after(history, BUSY, 0.0, since=61.0 + STALE_SECONDS).entries[0].at == 61.0 + STALE_SECONDS


def test_one_missed_target_restarts_scale_down_after() -> None:
    history = after(LoadHistory(), CALM, 100.0)
    history = after(history, BUSY, 0.0, since=105.0, ranks=3)
    history = after(history, CALM, 110.0, since=110.0)
    assert decided(history, 220.0) == 2
    history = after(history, CALM, 10.0, since=225.0)
    assert decided(history, 235.0) == 1


def test_scale_up_waits_for_scale_up_after() -> None:
    spec = replace(SPEC, scale_up_after=20.0)
    history = after(LoadHistory(), CALM, 60.0, spec=spec)
    history = after(history, BUSY, 15.0, since=65.0, spec=spec)
    assert decided(history, 80.0, spec=spec) == 2
    history = after(history, BUSY, 5.0, since=85.0, spec=spec)
    assert decided(history, 90.0, spec=spec) == 3


def test_engines_that_have_just_come_are_given_a_window() -> None:
    history = after(LoadHistory(), BUSY, 60.0)
    more = replace(BUSY, engines=3)
    assert decided(after(history, more, 25.0, since=65.0, ranks=3), 90.0, ranks=3) == 3
    assert decided(after(history, more, 35.0, since=65.0, ranks=3), 100.0, ranks=3) == 5


def test_a_lost_engine_delays_no_scale_up() -> None:
    history = after(LoadHistory(), CALM, 60.0)
    one = replace(BUSY, engines=1, waiting=40, arrived=120)
    assert decided(after(history, one, 0.0, since=65.0), 65.0) == 4


def test_the_limits_of_the_spec_hold() -> None:
    history = after(LoadHistory(), BUSY, 60.0)
    spec = replace(SPEC, max_ranks=2)
    missed = "requests wait 9.0 s for an engine (target 2 s)"
    assert history.decide(spec, 2, 60.0) == ScalingDecision(2, missed, limited=missed)
    assert decided(LoadHistory(), 0.0, ranks=9) == 8
    assert decided(LoadHistory(), 0.0, ranks=1, spec=replace(SPEC, min_ranks=2)) == 2


def test_the_load_of_a_missed_target_is_remembered() -> None:
    history = after(LoadHistory(), BUSY, 30.0)
    assert history.requests_per_rank == 8.0
    assert after(history, replace(BUSY, running=20), 5.0, since=35.0).requests_per_rank == 8.0
    assert after(history, replace(BUSY, running=10), 5.0, since=35.0).requests_per_rank == 5.0
    assert after(history, replace(CALM, running=20), 5.0, since=35.0).requests_per_rank == 10.0
    now = 30.0 + MAX_REMEMBERED_SECONDS
    assert after(history, CALM, 0.0, since=now).requests_per_rank == 8.0
    assert after(history, CALM, 0.0, since=now + 1).requests_per_rank is None


@pytest.mark.parametrize("engines", [1, 3])
def test_a_changed_number_of_engines_teaches_nothing(engines: int) -> None:
    history = after(LoadHistory(), CALM, 60.0)
    history = after(history, replace(BUSY, engines=engines), 0.0, since=65.0)
    assert history.requests_per_rank is None


def test_the_history_is_bounded() -> None:
    history = after(LoadHistory(), CALM, 3600.0)
    assert len(history.entries) <= (SPEC.scale_down_after + STALE_SECONDS) / POLL + 1
