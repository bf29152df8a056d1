"""Which events of an InferenceService need a reconcile."""

from typing import Any

import pytest

from kvasir_contract.api import MANAGER
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.watch import ServiceChanges

DEMO = Key("default", "demo")
OURS = {"manager": MANAGER, "operation": "Apply", "subresource": "status", "time": "1"}
SPEC = {"manager": "kubectl", "operation": "Update", "time": "1"}


def service(*entries: dict[str, str], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "1", "generation": 1, "managedFields": [SPEC, *entries], **metadata}}


def test_our_own_status_is_not_a_change() -> None:
    changes = ServiceChanges()
    assert changes.is_new(DEMO, service(), deleted=False)
    for time in ("1", "2"):
        assert not changes.is_new(DEMO, service({**OURS, "time": time}), deleted=False)


@pytest.mark.parametrize(
    "changed",
    [
        service(OURS, generation=2),
        service(OURS, annotations={"serving.kvasir.dev/release": "2"}),
        service(OURS, labels={"team": "a"}),
        service(OURS, deletionTimestamp="2026-11-28T00:00:00Z"),
        service(OURS, uid="2"),
        service(OURS, {**OURS, "manager": "kubectl-edit"}),
    ],
)
def test_everything_else_is_a_change(changed: dict[str, Any]) -> None:
    changes = ServiceChanges()
    changes.is_new(DEMO, service(OURS), deleted=False)
    assert changes.is_new(DEMO, changed, deleted=False)


def test_a_service_that_is_created_again_is_new() -> None:
    changes = ServiceChanges()
    changes.is_new(DEMO, service(), deleted=False)
    assert changes.is_new(DEMO, service(), deleted=True)
    assert changes.is_new(DEMO, service(), deleted=False)
