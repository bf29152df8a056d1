"""The operator's scaling by load over simulated hours."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from bench.autoscaling.simulation import Model, Results, Simulation, percentile
from bench.autoscaling.traces import BURST_PERIOD, BURST_SECONDS, HOUR, STEP, bursts, steady, step, wave
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir_operator.autoscaling_spec import AutoscalingSpec, LoadTargets

Trace = Callable[[random.Random], Iterator[float]]
QUEUE = LoadTargets(queue_seconds=2.0)
SPEC = AutoscalingSpec(1, 8, targets=QUEUE)
TARGETS = [QUEUE, LoadTargets(ttft=1.0), LoadTargets(kv_cache_utilization=0.7)]
SETTLED = 240.0  # seconds: two starts of an engine, and the backlog


def run(trace: Trace, targets: LoadTargets = QUEUE, seed: int = 1, **facts: object) -> Results:
    spec = replace(SPEC, targets=targets)
    return Simulation(spec, trace(random.Random(seed)), **facts).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("targets", TARGETS)
def test_a_wave_is_followed_up_and_down_once(targets: LoadTargets, seed: int) -> None:
    results = run(wave, targets, seed, model=Model(start_seconds=20.0))  # eight minutes of that day
    assert results.turns == 1
    assert percentile(results.waits, 0, HOUR) <= 2.0
    assert 5 <= max(size for _, size in results.sizes) <= 8  # 4.5 requests a second need 5
    assert results.size_at(HOUR) <= 4


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("targets", TARGETS)
def test_a_step_settles_within_its_target(targets: LoadTargets, seed: int) -> None:
    results = run(step, targets, seed)
    assert results.turns <= 3
    assert percentile(results.waits, STEP[0] + SETTLED, STEP[1]) <= 2.0
    settled = {size for at, size in results.sizes if STEP[0] + SETTLED <= at < STEP[1]}
    assert len(settled) <= 2
    assert results.size_at(HOUR) <= 3


@pytest.mark.parametrize("targets", TARGETS)
def test_each_burst_turns_the_size_twice_at_most(targets: LoadTargets) -> None:
    results = run(bursts, targets)
    assert results.turns <= 2 * HOUR / BURST_PERIOD
    between = percentile(results.waits, 2 * BURST_PERIOD + SETTLED, 3 * BURST_PERIOD - BURST_SECONDS)
    assert between <= 2.0


@settings(max_examples=8)
@given(rate=st.floats(0.1, 5.0), seed=st.integers(0, 100), start=st.sampled_from([5.0, 60.0, 300.0]))
def test_a_steady_load_does_not_oscillate(rate: float, seed: int, start: float) -> None:
    results = run(lambda rng: steady(rng, rate), seed=seed, model=Model(start_seconds=start))
    assert results.turns <= 4
    if start <= 60.0:
        assert percentile(results.waits, 0.5 * HOUR, HOUR) <= 2.2


@settings(max_examples=8)
@given(restarts=st.lists(st.floats(0, HOUR), max_size=20), trace=st.sampled_from([wave, step]))
def test_restarts_of_the_operator_turn_nothing_around(restarts: list[float], trace: Trace) -> None:
    results = run(trace, restarts=restarts)
    assert results.turns <= 3


def test_restarts_every_minute_still_add_engines() -> None:
    results = run(step, restarts=range(0, 3600, 60))
    assert results.turns == 0
    assert percentile(results.waits, STEP[0] + 2 * SETTLED, STEP[1]) <= 2.0


def test_silent_frontends_freeze_the_size() -> None:
    results = run(step, silent=lambda at: at > 300.0)
    assert [at for at, _ in results.sizes if at > 330.0] == []
