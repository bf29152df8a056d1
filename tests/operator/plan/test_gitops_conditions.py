"""What kstatus, which Flux, Helm and kpt use, derives from the status in each situation."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lupa
import pytest

from kvasir_contract.reasons import Reason
from kvasir_operator.plan.conditions import STALLED_SECONDS, Decisions, condition, seconds_until_stalled
from kvasir_operator.plan.plan import TIME_FORMAT
from kvasir_operator.plan.problem import Problem
from kvasir_operator.plan.service_status import Status, invalid_status
from kvasir_operator.plan.zero import ZeroDecision
from operator_facts import NOON, SCHEMA, engines, frontends
from status_facts import AT_NOON, READY, status_of

WELL = engines("ready", "ready")
CRASHING = engines("crashing", "crashing")


def kstatus(status: Mapping[str, Any], generation: int = 3) -> str:
    """Return the status as cli-utils' pkg/kstatus computes it for a custom resource."""
    if status.get("observedGeneration", generation) != generation:
        return "InProgress"
    if condition(status, "Reconciling").get("status") == "True":
        return "InProgress"
    if condition(status, "Stalled").get("status") == "True":
        return "Failed"
    return "Current" if condition(status, "Ready").get("status", "True") == "True" else "InProgress"


def after(seconds: float, previous: Status, **facts: Any) -> Status:
    now = (NOON + timedelta(seconds=seconds)).strftime(TIME_FORMAT)
    return status_of(facts.pop("ranks", CRASHING), facts.pop("front", READY), previous=previous, now=now, **facts)


PAUSED = Decisions((Problem(Reason.PAUSED, "spec.paused is true"),))
UNREACHABLE = Decisions(zero=ZeroDecision(unreachable=("demo-frontend-a",)))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (status_of(WELL), "Current"),
        (status_of(WELL, decisions=PAUSED), "Current"),
        (status_of(WELL, decisions=UNREACHABLE), "Current"),
        (status_of(engines("loading", "unready"), frontends("starting")), "InProgress"),
        (status_of(engines("ready", "loading")), "InProgress"),
        (
            status_of(WELL, decisions=Decisions(under_way=("1 pod is old",))),
            "InProgress",
        ),
        (status_of(CRASHING), "InProgress"),
        (invalid_status("spec.engine: no", 3, {}, AT_NOON), "Failed"),
    ],
)
def test_kstatus_of_a_situation(status: Status, expected: str) -> None:
    assert kstatus(status) == expected


def test_kstatus_of_a_service_without_an_operator_is_in_progress() -> None:
    document = {"metadata": {"name": "demo"}, "spec": {"model": {"source": "demo://"}}}
    completed, problems = SCHEMA.complete(document)
    assert not problems
    assert kstatus(completed["status"]) == "InProgress"
    assert condition(completed["status"], "Ready")["reason"] == "Pending"


def test_a_newer_spec_is_in_progress() -> None:
    assert kstatus(status_of(WELL), generation=4) == "InProgress"


def test_a_failure_that_lasts_is_stalled() -> None:
    """A pod may crash once, and an autoscaler needs a moment to report its node. A tool would stop waiting."""
    first = status_of(CRASHING)
    assert seconds_until_stalled(first, NOON) == STALLED_SECONDS
    almost = after(STALLED_SECONDS - 1, first)
    assert (kstatus(almost), condition(almost, "Stalled")["status"]) == ("InProgress", "Unknown")
    stalled = after(STALLED_SECONDS, almost)
    assert kstatus(stalled) == "Failed"
    assert seconds_until_stalled(stalled, NOON) is None
    assert kstatus(after(STALLED_SECONDS + 600, stalled)) == "Failed"


def test_a_failure_that_passes_is_not_stalled() -> None:
    first = status_of(CRASHING)
    well = after(STALLED_SECONDS - 1, first, ranks=WELL)
    assert kstatus(well) == "Current"
    again = after(STALLED_SECONDS + 100, well)
    assert kstatus(again) == "InProgress"


def test_a_failed_surge_stalls_although_the_service_answers() -> None:
    refused = Decisions((Problem(Reason.REFUSED, "exceeded quota"),))
    first = status_of(WELL, decisions=refused)
    stalled = after(STALLED_SECONDS, first, ranks=WELL, decisions=refused)
    assert condition(stalled, "Ready")["status"] == "True"
    assert [kstatus(first), kstatus(stalled)] == ["InProgress", "Failed"]


def argo(status: Mapping[str, Any], generation: int = 3) -> str:
    """Return the health that the script in manifests/ gives in Argo CD."""
    runtime = lupa.LuaRuntime()
    script = (Path(__file__).parents[3] / "manifests" / "argocd" / "health.lua").read_text()
    resource = {"metadata": {"generation": generation}, "status": status}
    runtime.globals()["obj"] = runtime.table_from(resource, recursive=True)
    return str(runtime.execute(script)["status"])


def test_argo_cd_shows_the_same_health() -> None:
    stalled = after(STALLED_SECONDS, status_of(CRASHING))
    pending = {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Pending", "message": ""}]}
    found = [argo(each) for each in (status_of(WELL), stalled, pending, status_of(WELL, decisions=PAUSED), {})]
    assert found == ["Healthy", "Degraded", "Progressing", "Suspended", "Progressing"]
    assert argo(status_of(WELL), generation=4) == "Progressing"
    assert argo(status_of(CRASHING)) == "Progressing"
