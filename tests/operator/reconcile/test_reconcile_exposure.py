"""Reconciles of an exposed service with an in-memory API server."""

import pytest

from kvasir_operator.cluster.kinds import HTTP_ROUTE, INFERENCE_SERVICE, INGRESS, RARE, SECRET
from mock_operator import Operator

BY_INGRESS = {"host": "llm.example.com"}
BY_GATEWAY = {"host": "llm.example.com", "gateway": {"name": "public"}}


async def test_the_exposure_follows_the_spec(settled: Operator) -> None:
    for expose, ingresses, routes in (
        (BY_INGRESS, ["demo"], []),
        (BY_GATEWAY, [], ["demo"]),
        (BY_INGRESS, ["demo"], []),
    ):
        settled.cluster.change_service(expose=expose)
        await settled.later()
        assert (settled.cluster.names(INGRESS), settled.cluster.names(HTTP_ROUTE)) == (ingresses, routes)
    service = settled.cluster.of(INFERENCE_SERVICE, "demo")
    del service["spec"]["expose"]
    await settled.later()
    assert settled.cluster.names(INGRESS) == []


async def test_an_exposure_removed_at_once_is_pruned(settled: Operator) -> None:
    """The reconcile that makes the Ingress has not seen it."""
    settled.cluster.change_service(expose=BY_INGRESS)
    await settled.once()
    del settled.cluster.of(INFERENCE_SERVICE, "demo")["spec"]["expose"]
    await settled.later()
    assert settled.cluster.names(INGRESS) == []


async def test_kinds_that_a_service_has_not_are_not_listed(settled: Operator) -> None:
    await settled.later()
    rare = {kind.kind for kind in RARE}
    assert not [call for call in settled.cluster.calls if call[1] in rare]


async def test_an_ingress_left_by_an_earlier_operator_is_pruned(settled: Operator) -> None:
    settled.cluster.change_service(expose=BY_INGRESS)
    await settled.later()
    del settled.cluster.of(INFERENCE_SERVICE, "demo")["spec"]["expose"]
    settled.restart()
    await settled.later()
    assert settled.cluster.names(INGRESS) == []


@pytest.mark.parametrize("is_installed_later", [False, True])
async def test_a_missing_gateway_api_is_no_retry_storm(settled: Operator, is_installed_later: bool) -> None:
    settled.cluster.missing_kinds.add(HTTP_ROUTE)
    settled.cluster.change_service(expose=BY_GATEWAY)
    assert await settled.later() == 30
    assert settled.cluster.condition("Exposed") == ("False", "RouteRefused")
    assert settled.cluster.condition("Ready")[0] == "True"
    assert settled.cluster.calls["apply", "HTTPRoute"] == 0
    await settled.later(30)
    assert [reason for reason, _ in settled.cluster.recorded_events].count("NotExposed") == 1
    if is_installed_later:
        settled.cluster.missing_kinds.clear()
        await settled.later(30)
        assert settled.cluster.names(HTTP_ROUTE) == ["demo"]


async def test_a_certificate_that_comes_later_is_seen(settled: Operator) -> None:
    settled.cluster.change_service(expose={**BY_INGRESS, "tls": {"secretName": "llm-tls"}})
    await settled.later()
    assert settled.cluster.condition("Exposed") == ("False", "InvalidSpec")
    settled.cluster.put(SECRET, {"metadata": {"name": "llm-tls", "namespace": "default"}})
    await settled.later(30)
    assert settled.cluster.condition("Exposed") == ("Unknown", "AwaitingAddress")
