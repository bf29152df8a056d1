import pytest

from kvasir_operator.cluster.cluster_client import ClusterError
from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    Kind,
)
from kvasir_operator.plan.next_look import BLOCKED_INTERVAL_SECONDS
from mock_cluster import refusal
from mock_operator import Operator


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        (400, "exceeded quota: gpus", "InvalidSpec"),
        (403, "exceeded quota: gpus", "Refused"),
        (422, "exceeded quota: gpus", "InvalidSpec"),
        (429, "too many requests", "Refused"),
        (500, "failed to create typed patch object: .spec.x: field not declared in schema", "InvalidSpec"),
        (500, "failed calling webhook: connection refused", "Refused"),
        (503, "etcd has no leader", "Refused"),
    ],
)
@pytest.mark.parametrize("kind", [SERVICE_ACCOUNT, DISRUPTION_BUDGET, DEPLOYMENT], ids=lambda kind: kind.kind)
async def test_a_refused_child_stops_neither_others_nor_the_status(
    operator: Operator, kind: Kind, status: int, words: str, reason: str
) -> None:
    operator.cluster.add_service()
    operator.cluster.refused["apply", kind] = refusal(status, words)
    assert await operator.once() == pytest.approx(2)
    assert operator.cluster.names(kind) == []
    assert operator.cluster.names(STATEFUL_SET) == ["demo-engine"]
    assert operator.cluster.condition("Ready") == ("False", reason)
    assert words in operator.cluster.ready_message()


async def test_a_refusal_vanishes_with_its_cause(settled: Operator) -> None:
    settled.cluster.remove(DISRUPTION_BUDGET, "demo-engine")
    settled.cluster.refused["apply", DISRUPTION_BUDGET] = refusal(403, "exceeded quota")
    assert await settled.later() == BLOCKED_INTERVAL_SECONDS
    assert settled.cluster.condition("Ready") == ("True", "Refused")
    settled.cluster.refused.clear()
    assert await settled.later(BLOCKED_INTERVAL_SECONDS) is None
    assert settled.cluster.condition("Ready") == ("True", "AsDesired")
    assert settled.cluster.names(DISRUPTION_BUDGET) == ["demo-engine", "demo-frontend"]


async def test_a_refused_update_is_tried_again_each_time(settled: Operator) -> None:
    settled.cluster.change_service(frontend={"replicas": 2})
    settled.cluster.refused["apply", DEPLOYMENT] = refusal(403, "a webhook denies it")
    for _ in range(3):
        await settled.later(BLOCKED_INTERVAL_SECONDS)
        assert settled.cluster.condition("Ready") == ("True", "Refused")
    assert settled.cluster.calls["apply", "Deployment"] == 3


async def test_a_refusal_is_not_repeated_at_each_event(settled: Operator) -> None:
    settled.cluster.change_service(frontend={"replicas": 2})
    settled.cluster.refused["apply", DEPLOYMENT] = refusal(403, "a webhook denies it")
    for _ in range(5):
        await settled.later()
        assert settled.cluster.condition("Ready") == ("True", "Refused")
    assert settled.cluster.calls["apply", "Deployment"] == 1
    settled.cluster.refused.clear()
    settled.cluster.change_service(frontend={"replicas": 3})
    await settled.later()
    assert settled.cluster.calls["apply", "Deployment"] == 2, "another body is tried at once"


async def test_an_api_server_that_does_not_answer_is_an_error(settled: Operator) -> None:
    settled.cluster.remove(DISRUPTION_BUDGET, "demo-engine")
    settled.cluster.refused["apply", DISRUPTION_BUDGET] = refusal(0, "no route to host")
    with pytest.raises(ClusterError, match="no route to host"):
        await settled.later()
    assert settled.cluster.statuses == []


async def test_a_terminating_namespace_stops_the_retries(settled: Operator) -> None:
    settled.cluster.remove(SERVICE, "demo")
    settled.cluster.remove(DISRUPTION_BUDGET, "demo-engine")
    settled.cluster.refused["apply", SERVICE] = refusal(403, "being terminated", cause="NamespaceTerminating")
    assert await settled.later() is None
    assert "the namespace is being deleted" in settled.cluster.ready_message()
    for _ in range(3):
        assert await settled.later() is None
    assert settled.cluster.calls["apply", "Service"] == 1
    assert settled.cluster.calls["apply", "PodDisruptionBudget"] == 0
    assert len(settled.cluster.statuses) == 1
