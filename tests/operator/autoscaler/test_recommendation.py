from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_contract.status_report import ReportedLoad
from kvasir_operator.autoscaler.load_sample import LoadSample, sample_of
from kvasir_operator.autoscaler.recommendation import MAX_ADDED, recommend
from kvasir_operator.autoscaling_spec import LoadTargets

TARGETS = LoadTargets(queue_seconds=2.0, kv_cache_utilization=0.8, ttft=1.0)
CALM = LoadSample(
    engines=4,
    arrived=60,
    finished=60,
    waiting=0,
    running=20,
    queue_seconds=0.0,
    ttft=0.2,
    kv_cache_utilization=0.1,
)
REPORT = ReportedLoad(30.0, 4, 30, 28, 3, 12, 1.0, 1.5, 0.4)
SAMPLES = st.builds(
    LoadSample,
    engines=st.integers(0, 64),
    arrived=st.integers(0, 10_000),
    finished=st.integers(0, 10_000),
    waiting=st.integers(0, 10_000),
    running=st.integers(0, 10_000),
    queue_seconds=st.floats(0, 1000),
    ttft=st.floats(0, 1000),
    kv_cache_utilization=st.floats(0, 1),
)
LIMITS = st.none() | st.floats(0.1, 1000)


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({"queue_seconds": 2.1}, 4),  # within the tolerance
        ({"queue_seconds": 1.9}, 4),
        ({"queue_seconds": 3.0}, 5),
        ({"queue_seconds": 30.0, "arrived": 90, "waiting": 40}, 6),  # half as many again arrive as end
        ({"queue_seconds": 30.0, "arrived": 600, "waiting": 10}, 6),  # few of them wait yet
        ({"queue_seconds": 30.0, "arrived": 600, "finished": 0, "waiting": 400}, 8),
        ({"queue_seconds": 30.0, "waiting": 400, "running": 0, "finished": 0}, 5),
        ({"ttft": 1.2}, 5),
        ({"ttft": 1.2, "running": 4}, 4),  # an engine for each request
        ({"kv_cache_utilization": 0.85}, 4),
        ({"kv_cache_utilization": 1.0}, 5),
        ({"kv_cache_utilization": 1.0, "waiting": 20, "arrived": 120}, 8),
        ({"engines": 0}, 4),
    ],
)
def test_a_missed_target_asks_for_more(changes: dict[str, Any], ranks: int) -> None:
    assert recommend(TARGETS, replace(CALM, **changes), 4, None).ranks == ranks


@pytest.mark.parametrize(
    ("changes", "limit", "ranks"),
    [
        ({}, None, 3),  # one less, to try
        ({}, 10.0, 3),  # 20 requests, 8 for each
        ({}, 5.0, 4),
        ({}, 100.0, 2),  # half of them at a time
        ({"kv_cache_utilization": 0.6}, 100.0, 3),
        ({"kv_cache_utilization": 0.7}, 100.0, 4),
        ({"engines": 3}, None, 3),  # one starts
        ({"engines": 1, "running": 0}, 10.0, 2),  # the others find no room
    ],
)
def test_fewer_must_have_room_for_the_load(changes: dict[str, Any], limit: float | None, ranks: int) -> None:
    assert recommend(TARGETS, replace(CALM, **changes), 4, limit).ranks == ranks


def test_engines_that_start_count() -> None:
    missed = replace(CALM, engines=1, queue_seconds=60.0, waiting=100, arrived=45, finished=30)
    assert recommend(TARGETS, missed, 1, None).ranks == 2
    assert recommend(TARGETS, missed, 2, None).ranks == 2
    assert recommend(TARGETS, replace(missed, arrived=90), 2, None).ranks == 3


def test_a_missed_target_is_named_with_its_value() -> None:
    found = recommend(TARGETS, replace(CALM, queue_seconds=4.24, kv_cache_utilization=0.95), 4, None)
    assert found.missed == (
        "requests wait 4.2 s for an engine (target 2 s)",
        "95% of the KV cache are in use (target 80%)",
    )


def test_a_target_that_is_not_set_counts_for_nothing() -> None:
    all_missed = replace(CALM, queue_seconds=60.0, kv_cache_utilization=1.0, ttft=60.0)
    assert recommend(LoadTargets(ttft=100.0), all_missed, 4, None).ranks == 3


@given(SAMPLES, st.integers(1, 64), LIMITS)
def test_a_step_is_limited(sample: LoadSample, ranks: int, limit: float | None) -> None:
    found = recommend(TARGETS, sample, ranks, limit).ranks
    serving = sample.engines
    assert ranks / 2 <= found <= max(ranks, 2 * serving, serving + MAX_ADDED)


@given(SAMPLES, st.integers(1, 64), LIMITS, st.floats(1, 100))
def test_a_longer_wait_never_asks_for_fewer(
    sample: LoadSample, ranks: int, limit: float | None, factor: float
) -> None:
    longer = replace(sample, queue_seconds=sample.queue_seconds * factor)
    assert recommend(TARGETS, longer, ranks, limit).ranks >= recommend(TARGETS, sample, ranks, limit).ranks


def test_a_sample_needs_a_report_of_each_frontend() -> None:
    assert sample_of([]) is None
    assert sample_of([REPORT, None]) is None


def test_frontends_add_up() -> None:
    other = replace(REPORT, engines=3, queue_seconds=None, ttft=None, kv_cache_utilization=0.5)
    assert sample_of([REPORT, other]) == LoadSample(3, 60, 56, 6, 24, 1.0, 1.5, 0.5)
