import asyncio

import pytest

from kvasir_operator import operator_process
from kvasir_operator.cluster.kinds import SECRET, SERVICE_ACCOUNT, STATEFUL_SET
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.service_observer import SECRET_INTERVAL_SECONDS
from kvasir_operator.operator_process import SECRETS_SECONDS
from kvasir_operator.plan.next_look import BLOCKED_INTERVAL_SECONDS
from mock_cluster import refusal
from mock_operator import Operator


async def test_link_keys_are_created_once(settled: Operator) -> None:
    assert settled.cluster.names(SECRET) == [settled.cluster.link_secret()]
    settled.restart()
    await settled.later()
    assert settled.cluster.names(SECRET) == [settled.cluster.link_secret()]
    assert settled.cluster.calls["create", "Secret"] == 0


async def test_deleted_link_keys_are_replaced_and_roll_the_pods(settled: Operator) -> None:
    first = settled.cluster.link_secret()
    template = settled.cluster.of(STATEFUL_SET, "demo-engine")["spec"]["template"]
    settled.cluster.remove(SECRET, first)
    await settled.later(SECRET_INTERVAL_SECONDS)
    assert settled.cluster.names(SECRET) == [settled.cluster.link_secret()] != [first]
    assert settled.cluster.of(STATEFUL_SET, "demo-engine")["spec"]["template"] != template
    assert settled.cluster.condition("Progressing") == ("True", "RollingOut")


async def test_deleted_link_keys_are_noticed_between_passes(
    settled: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SECRETS_SECONDS <= 60
    monkeypatch.setattr(operator_process, "SECRETS_SECONDS", 0.0)
    put: asyncio.Queue[Key] = asyncio.Queue()
    assert not await settled.reconciler.lost_a_secret(Key("default", "demo"))
    first = settled.cluster.link_secret()
    settled.cluster.remove(SECRET, first)
    checks = asyncio.create_task(operator_process.check_secrets(settled.reconciler, put.put_nowait))
    assert await put.get() == ("default", "demo")
    await settled.later()
    assert settled.cluster.names(SECRET) == [settled.cluster.link_secret()] != [first]
    checks.cancel()


async def test_secrets_of_running_pods_are_checked_now_and_then(settled: Operator) -> None:
    settled.restart()
    await settled.later()
    assert settled.cluster.calls["create-dry", "Secret"] == 1
    await settled.later(SECRET_INTERVAL_SECONDS - 1)
    assert settled.cluster.calls["create-dry", "Secret"] == 1
    await settled.later(1)
    assert settled.cluster.calls["create-dry", "Secret"] == 2


async def test_a_refused_secret_is_created_once_it_is_allowed(operator: Operator) -> None:
    operator.cluster.add_service()
    operator.cluster.refused["create", SECRET] = refusal(403, "exceeded quota: secrets")
    for _ in range(3):
        await operator.later(BLOCKED_INTERVAL_SECONDS)
    assert operator.cluster.condition("Ready") == ("False", "Refused")
    assert "exceeded quota: secrets" in operator.cluster.ready_message()
    assert operator.cluster.names(STATEFUL_SET) == []  # without keys there are no pods
    operator.cluster.refused.clear()
    await operator.settle()
    assert len(operator.cluster.names(SECRET)) == 1


async def test_no_secret_is_left_per_retry_of_another_child(settled: Operator) -> None:
    """The new keys are used although the ServiceAccount that records their name cannot be written."""
    settled.cluster.remove(SECRET, settled.cluster.link_secret())
    settled.cluster.refused["apply", SERVICE_ACCOUNT] = refusal(403, "a webhook denies it")
    for _ in range(4):
        await settled.later(SECRET_INTERVAL_SECONDS)
    assert len(settled.cluster.names(SECRET)) == 1
    settled.cluster.refused.clear()
    await settled.later(BLOCKED_INTERVAL_SECONDS)
    await settled.settle()
    assert settled.cluster.names(SECRET) == [settled.cluster.link_secret()]


async def test_without_rights_on_secrets_no_keys_are_replaced(settled: Operator) -> None:
    settled.restart()
    settled.cluster.refused["create-dry", SECRET] = refusal(403, "forbidden")
    assert await settled.later() is None
    assert settled.cluster.calls["create", "Secret"] == 0
    assert settled.cluster.condition("Ready") == ("True", "AsDesired")


@pytest.mark.parametrize("field", ["apiKeys", "adminApiKeys"])
async def test_a_missing_secret_of_api_keys_is_reported(settled: Operator, field: str) -> None:
    settled.cluster.change_service(frontend={"replicas": 1, field: {"name": "keys"}})
    assert await settled.later(SECRET_INTERVAL_SECONDS) == pytest.approx(BLOCKED_INTERVAL_SECONDS)
    assert settled.cluster.condition("Ready")[1] == "InvalidSpec"
    assert f"frontend.{field} names the Secret keys, which does not exist" in settled.cluster.ready_message()
    settled.cluster.put(SECRET, {"metadata": {"name": "keys", "namespace": "default"}})
    await settled.settle()
