"""The cache of a model: its Job, what waits for it, and the condition ModelCached."""

from dataclasses import replace
from typing import Any, Final

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import CLAIM, JOB, SERVICE_ACCOUNT, STATEFUL_SET, Kind
from kvasir_operator.observe.observed import ChildObject, Member, Observed, Ownership, PodState, Refusal
from kvasir_operator.plan.applies import digest
from kvasir_operator.plan.cache_fill import MODEL_CACHED
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.plan import Plan, make_plan
from kvasir_operator.resources.model_cache import cache_claim, cache_job
from kvasir_operator.resources.model_volume import cache_directory
from kvasir_operator.resources.names import FILLED_ANNOTATION
from kvasir_operator.spec import InferenceService
from operator_facts import (
    NEWER,
    NOON,
    RELEASE,
    SECRET_NAME,
    engines,
    frontends,
    member,
    observed,
    service,
    workload,
)

SOURCE: Final = "hf://org/name"
Children = dict[tuple[Kind, str], ChildObject]
WORKLOADS: Final = {"Deployment", "StatefulSet"}
CACHED: Final = service(1, model={"source": SOURCE, "cache": {"size": "40Gi"}})
JOB_NAME: Final = cache_job(CACHED, RELEASE)["metadata"]["name"]


def planned(of: InferenceService, found: Observed) -> Plan:
    return make_plan(of, found, {}, RELEASE, NOON)


def facts(*children: tuple[Kind, str, dict[str, Any]], of: InferenceService = CACHED, **more: Any) -> Observed:
    """Return the facts of a service that has only these children."""
    found = {}
    for kind, name, body in children:
        about = {"managedFields": [], **body["metadata"], "uid": f"uid-{name}"}
        found[kind, name] = ChildObject({**body, "metadata": about}, Ownership.OURS, terminating=False)
    values = {"link_secret": SECRET_NAME, "link_secret_exists": True, "children": found}
    return Observed(1, "", **{**values, **more})


def claim(filled: str = "") -> tuple[Kind, str, dict[str, Any]]:
    assert CACHED.model.cache is not None
    return CLAIM, "demo-model", cache_claim(CACHED, CACHED.model.cache, filled)


def job(condition: str = "") -> tuple[Kind, str, dict[str, Any]]:
    status = {"conditions": [{"type": condition, "status": "True"}]} if condition else {}
    return JOB, JOB_NAME, {**cache_job(CACHED, RELEASE), "status": status}


def fetching(phase: Phase, reason: Reason, message: str, progress: str = "") -> Member:
    pod = member("demo-model-x", "loading", "model")
    return replace(pod, state=PodState("demo-model-x", phase, reason, message, progress))


def applied(plan: Plan) -> dict[str, Any]:
    return {f"{apply.key[0].kind}/{apply.key[1]}": apply.body for apply in plan.applies}


def kinds(plan: Plan) -> set[str]:
    return {apply.key[0].kind for apply in plan.applies}


def test_pods_wait_until_the_job_has_filled_the_claim() -> None:
    first = planned(CACHED, facts())
    assert {"PersistentVolumeClaim", "Job", "Service"} <= kinds(first)
    assert not WORKLOADS & kinds(first)
    running = planned(CACHED, facts(claim(), job()))
    assert not WORKLOADS & kinds(running)
    assert not running.prunes
    done = planned(CACHED, facts(claim(), job("Complete")))
    assert kinds(done) >= WORKLOADS
    recorded = applied(done)["PersistentVolumeClaim/demo-model"]["metadata"]["annotations"]
    assert recorded == {FILLED_ANNOTATION: cache_directory(SOURCE)}
    assert not done.prunes
    kept = planned(CACHED, facts(claim(cache_directory(SOURCE)), job("Complete")))
    assert [key for key, _ in kept.prunes] == [(JOB, JOB_NAME)]
    assert kinds(kept) >= WORKLOADS


def test_a_finished_job_does_not_count_for_a_later_claim() -> None:
    def at(child: tuple[Kind, str, dict[str, Any]], created: str) -> tuple[Kind, str, dict[str, Any]]:
        kind, name, body = child
        return kind, name, {**body, "metadata": {**body["metadata"], "creationTimestamp": created}}

    done = at(job("Complete"), "2026-01-01T00:00:05Z")
    for children in ([done], [at(claim(), "2026-01-01T00:00:06Z"), done]):
        plan = planned(CACHED, facts(*children))
        assert not WORKLOADS & kinds(plan)
        assert [key for key, _ in plan.prunes] == [(JOB, JOB_NAME)]
    assert kinds(planned(CACHED, facts(at(claim(), "2026-01-01T00:00:05Z"), done))) >= WORKLOADS


def test_a_job_is_not_run_again_after_it_is_recorded() -> None:
    plan = planned(CACHED, facts(claim(cache_directory(SOURCE))))
    assert "Job" not in kinds(plan)
    assert condition(plan.status, MODEL_CACHED)["status"] == "True"
    other = planned(CACHED, facts(claim(cache_directory("hf://org/name@v1"))))
    assert "Job" in kinds(other)
    assert not WORKLOADS & kinds(other)


def test_running_pods_go_on_while_a_cache_is_filled() -> None:
    before = service(1, model={"source": SOURCE})
    seen = observed(before, engines("ready"), frontends("ready"))
    plan = planned(CACHED, seen)
    assert kinds(plan) == {"PersistentVolumeClaim", "Job"}
    assert not plan.deletions
    assert condition(plan.status, "Ready")["status"] == "True"
    scaled = service(3, model={"source": SOURCE, "cache": {"size": "40Gi"}})
    grown = applied(planned(scaled, seen))["StatefulSet/demo-engine"]
    existing = seen.children[STATEFUL_SET, "demo-engine"].object
    assert grown["spec"]["replicas"] == 3
    assert grown["spec"]["template"] == existing["spec"]["template"]
    filled = {**seen.children, **facts(claim(cache_directory(SOURCE))).children}
    after = applied(planned(CACHED, seen.with_changes(children=filled)))["StatefulSet/demo-engine"]
    assert after["spec"]["template"] != existing["spec"]["template"]


def test_the_status_has_the_running_release_during_a_fill() -> None:
    before = service(1, model={"source": SOURCE})
    seen = observed(before, engines("ready"), frontends("ready"))
    plan = make_plan(CACHED, seen.with_changes(may_upgrade=True), {}, NEWER, NOON)
    assert plan.status["release"] == RELEASE.id
    assert plan.upgrade_available


def waiting(condition: str = "", children: Children | None = None, **more: Any) -> Observed:
    """Return the facts of a service whose Job exists and whose pods do not."""
    seen = observed(CACHED, stateful_set=None, deployment=None)
    kind, name, body = job(condition)
    live = ChildObject(
        {**body, "metadata": {**body["metadata"], "uid": "uid-job"}}, Ownership.OURS, terminating=False
    )
    unchanged = {**seen.unchanged, live.uid: digest(cache_job(CACHED, RELEASE), live.object)}
    found = {**seen.children, (kind, name): live, **(children or {})}
    return seen.with_changes(children=found, unchanged=unchanged, **more)


REFUSED: Final = {(CLAIM, "demo-model"): Refusal(Reason.REFUSED, "exceeded quota")}
TAKEN: Final = {
    (CLAIM, "demo-model"): ChildObject({"metadata": {"uid": "1"}}, Ownership.FOREIGN, terminating=False)
}

LEAVING: Final = {
    key: replace(child, terminating=True) for key, child in facts(claim(cache_directory(SOURCE))).children.items()
}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (waiting(), "Loading: the Job that downloads it has no pod yet"),
        (
            waiting(
                fetches=(fetching(Phase.LOADING, Reason.LOADING, "118 MB/s, about 2 min left", "3.1/16.4 GB"),)
            ),
            "Loading: pod demo-model-x: Loading 3.1/16.4 GB (118 MB/s, about 2 min left)",
        ),
        (
            waiting(fetches=(fetching(Phase.FAILED, Reason.DOWNLOAD_FAILED, "the hub is away"),)),
            "DownloadFailed: pod demo-model-x: the hub is away",
        ),
        (
            waiting(fetches=(fetching(Phase.FAILED, Reason.MODEL_NOT_FOUND, "no such model"),)),
            "ModelNotFound: pod demo-model-x: no such model",
        ),
        (
            waiting(claim_failure="no storage class is set"),
            "VolumeFailed: PersistentVolumeClaim demo-model gets no volume (no storage class is set): check "
            "model.cache",
        ),
        (
            waiting(job_failure='pods "demo-model-x" is forbidden: exceeded quota'),
            f'Unschedulable: the pod of Job {JOB_NAME} cannot be created (pods "demo-model-x" is forbidden: '
            "exceeded quota): check quotas and admission policies",
        ),
        (waiting("Failed"), f"DownloadFailed: Job {JOB_NAME} has failed: delete it to try again"),
        (waiting(refusals=REFUSED), "Refused: exceeded quota"),
        (waiting(children=TAKEN), "NameTaken: PersistentVolumeClaim demo-model is not of this service"),
        (
            waiting(children=LEAVING),
            "Loading: PersistentVolumeClaim demo-model is being deleted, which ends when no pod mounts it",
        ),
    ],
)
def test_the_condition_names_what_a_cache_waits_for(found: Observed, expected: str) -> None:
    status = planned(CACHED, found).status
    entry = condition(status, MODEL_CACHED)
    assert f"{entry['reason']}: {entry['message']}" == expected
    assert entry["status"] == "False"
    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", entry["reason"])


def test_pods_keep_their_template_while_the_claim_is_deleted() -> None:
    before = service(1, model={"source": SOURCE})
    seen = observed(before, engines("ready"), frontends("ready"))
    plan = planned(CACHED, seen.with_changes(children={**seen.children, **LEAVING}))
    assert not kinds(plan)
    assert condition(plan.status, "Ready")["status"] == "True"


def test_a_job_does_not_use_a_foreign_account() -> None:
    seen = observed(CACHED, stateful_set=None, deployment=None)
    account = replace(seen.children[SERVICE_ACCOUNT, "demo"], ownership=Ownership.FOREIGN)
    children = {**seen.children, (SERVICE_ACCOUNT, "demo"): account}
    assert "Job" not in kinds(planned(CACHED, seen.with_changes(children=children)))


def test_a_download_is_observed_while_it_runs() -> None:
    before = service(1, model={"source": SOURCE})
    seen = observed(before, engines("ready"), frontends("ready"))
    loading = replace(fetching(Phase.LOADING, Reason.LOADING, "", "3.1/16.4 GB"), waited=100.0)
    assert planned(CACHED, seen.with_changes(fetches=(loading,))).again == 10.0


def test_a_service_without_a_cache_has_no_condition() -> None:
    of = service(1)
    plan = planned(of, observed(of, engines("ready"), frontends("ready")))
    assert condition(plan.status, MODEL_CACHED) == {}
    assert plan.prunes == ()


def test_removing_a_cache_prunes_its_claim_unless_retained() -> None:
    of = service(1)
    there = facts(claim(cache_directory(SOURCE))).children
    seen = observed(of, engines("ready"), frontends("ready"), stateful_set=workload(1))
    found = seen.with_changes(children={**seen.children, **there})
    assert [key for key, _ in planned(of, found).prunes] == [(CLAIM, "demo-model")]
    orphan = {key: replace(child, ownership=Ownership.ORPHAN) for key, child in there.items()}
    assert not planned(of, seen.with_changes(children={**seen.children, **orphan})).prunes
