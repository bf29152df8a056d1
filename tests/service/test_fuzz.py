"""Malformed requests against a real service, some hundreds here; bench/fuzz.py sends ten thousand."""

import asyncio
from collections.abc import Iterator

import pytest
from bench.fuzz import EMBED, SERVE, engines, fuzz, left_behind, schemathesis

from service.running import Service, running

REQUESTS = 600
POOLING_REQUESTS = 400
PATIENCE = 60.0


@pytest.fixture(scope="module")
def target() -> Iterator[Service]:
    with running("serve", "demo://", *SERVE) as service:
        before = engines(service.url)
        yield service
        assert left_behind(service.url) is None
        assert engines(service.url) == before, "an engine has restarted"


def test_malformed_requests_are_told_so_and_leave_nothing(target: Service) -> None:
    report = asyncio.run(
        fuzz(target.url, 0, range(REQUESTS), connections=16, patience=PATIENCE, quiet=True),
    )
    assert not report.failures, "\n".join(report.failures)
    assert sum(report.statuses.values()) == REQUESTS
    assert {"200", "400", "404", "405", "hung up"} <= report.statuses.keys()
    assert left_behind(target.url) is None


def test_malformed_pooling_requests_leave_nothing() -> None:
    with running("serve", "demo://", *SERVE, *EMBED) as service:
        before = engines(service.url)
        numbers = range(POOLING_REQUESTS)
        report = asyncio.run(
            fuzz(service.url, 0, numbers, connections=16, patience=PATIENCE, quiet=True, pooling=True)
        )
        assert not report.failures, "\n".join(report.failures)
        assert {"200", "400", "404"} <= report.statuses.keys()
        assert left_behind(service.url) is None
        assert engines(service.url) == before, "an engine has restarted"


def test_schemathesis_finds_no_difference_to_the_description(target: Service) -> None:
    assert schemathesis(target.url, seed=0, examples=15, phases="fuzzing") == 0
