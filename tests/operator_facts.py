"""Facts of a service for tests of the operator's pure functions, written as words such as "old ready"."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import Kind, kind_of
from kvasir_operator.observe.observed import (
    ChildObject,
    Container,
    Member,
    Object,
    Observed,
    Ownership,
    Pod,
    PodState,
    WorkloadState,
)
from kvasir_operator.plan.applies import digest
from kvasir_operator.resources.children import children
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service

DEMO: Final = Path(__file__).parents[1] / "manifests" / "examples" / "demo.yaml"
NOON: Final = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
LATER: Final = datetime(2026, 11, 21, 12, 5, 0, tzinfo=UTC)
RELEASE: Final = Release(frontend_image="frontend:1", engine_image="engine:1", version="1.0")
NEWER: Final = Release(frontend_image="frontend:2", engine_image="engine:2", version="2.0")
SECRET_NAME: Final = "demo-link-abc"
SCHEMA: Final = CRDSchema.of_crd()
SURGE_SECONDS: Final = 30.0
"""The default of rollout.surgeTimeout."""


def service(ranks: int = 2, frontends: int = 1, **spec: Any) -> InferenceService:
    document = yaml.safe_load(DEMO.read_text())
    document["metadata"] |= {"namespace": "default", "uid": "uid-1"}
    document["spec"]["engine"]["dataParallelSize"] = ranks
    document["spec"]["frontend"] = {"replicas": frontends, **spec.pop("frontend", {})}
    document["spec"]["engine"] |= spec.pop("engine", {})
    document["spec"] |= spec
    completed, problems = SCHEMA.complete(document)
    assert not problems, problems
    return parse_service(completed)


def pod(name: str, component: str = "engine", **facts: Any) -> Pod:
    values: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "component": component,
        "node": "node-1",
        "ip": "10.0.0.1",
        "addresses": frozenset({"10.0.0.1"}),
        "revision": "new",
        "terminating": False,
        "ready": True,
        "has_ended": False,
        "end_message": "",
        "scheduled": True,
        "schedule_message": "",
        "scheduling_changed": "",
        "container": Container("image:1", "running", "", "", None, None, 0),
    }
    return Pod(**values | facts)


_STATES: Final[Mapping[str, tuple[Phase, Reason, str]]] = {
    "ready": (Phase.READY, Reason.AS_DESIRED, ""),
    "unready": (Phase.WARMING, Reason.WARMING, ""),
    "starting": (Phase.STARTING, Reason.LOADING, ""),
    "loading": (Phase.LOADING, Reason.LOADING, ""),
    "pending": (Phase.SCHEDULING, Reason.UNSCHEDULABLE, "no node accepts the pod"),
    "node-comes": (Phase.SCHEDULING, Reason.WAITING_FOR_NODE, "a node is being added"),
    "pulling": (Phase.PULLING, Reason.LOADING, ""),
    "no-image": (Phase.PULLING, Reason.IMAGE_PULL_FAILED, "image x cannot be pulled"),
    "crashing": (Phase.FAILED, Reason.CRASH_LOOPING, "the container ended with exit code 1"),
    "leaving": (Phase.DRAINING, Reason.ROLLING_OUT, ""),
    "lost": (Phase.FAILED, Reason.NODE_LOST, "node node-1 is gone"),
    "refused": (Phase.READY, Reason.LINK_REFUSED, "another model"),
}


def member(name: str, words: str, component: str = "engine", waited: float = 1.0) -> Member:
    """Return a member. `words` are a state of `_STATES`, and "old", "leaving" or "@node"."""
    parts = words.split()
    key = next((part for part in parts if part in _STATES and part != "leaving"), "leaving")
    phase, reason, message = _STATES[key]
    terminating, is_ready = "leaving" in parts, key == "ready"
    if terminating and key != "lost":
        phase, reason, is_ready = Phase.DRAINING, Reason.ROLLING_OUT, False
    node = next((part[1:] for part in parts if part.startswith("@")), "node-1")
    facts = pod(
        name,
        component,
        revision="old" if "old" in parts else "new",
        terminating=terminating,
        ready=is_ready,
        node="" if phase is Phase.SCHEDULING else node,
    )
    linked = None if component == "frontend" else "unlinked" not in parts
    return Member(facts, PodState(name, phase, reason, message, ready=is_ready), waited, linked)


def engines(*ranks: str, waited: float = 1.0) -> tuple[Member, ...]:
    """Return one member per ordinal, which is a rank; "-" stands for an ordinal without a pod."""
    return tuple(
        member(f"demo-engine-{rank}", words, waited=waited) for rank, words in enumerate(ranks) if words != "-"
    )


def frontends(*pods: str, waited: float = 1.0) -> tuple[Member, ...]:
    return tuple(
        member(f"demo-frontend-{letter}", words, "frontend", waited)
        for letter, words in zip("abcdefgh", pods, strict=False)
    )


def workload(replicas: int, **facts: Any) -> WorkloadState:
    values: dict[str, Any] = {
        "uid": "uid-workload",
        "replicas": replicas,
        "is_observed": True,
        "revision": "new",
        "pods": replicas,
        "updated": replicas,
        "failure": "",
    }
    return WorkloadState(**values | facts)


def observed(
    of: InferenceService,
    ranks: Sequence[Member] = (),
    front: Sequence[Member] = (),
    release: Release = RELEASE,
    **facts: Any,
) -> Observed:
    """Return the facts of a service whose objects were all applied by `release`."""
    stateful_set = facts.pop("stateful_set", workload(of.engine.pods))
    deployment = facts.pop("deployment", workload(of.frontend.replicas))
    found = existing(of, release, {"StatefulSet": stateful_set, "Deployment": deployment})
    values: dict[str, Any] = {
        "generation": 3,
        "asked_release": "",
        "children": found,
        "stateful_set": stateful_set,
        "deployment": deployment,
        "engines": tuple(ranks),
        "frontends": tuple(front),
        "link_secret": SECRET_NAME,
        "link_secret_exists": True,
        "unchanged": {child.uid: digest(_as_applied(child.object), child.object) for child in found.values()},
    }
    return Observed(**values | facts)


def existing(
    of: InferenceService, release: Release, workloads: Mapping[str, WorkloadState | None]
) -> dict[tuple[Kind, str], ChildObject]:
    found = {}
    for body in children(of, release, SECRET_NAME):
        kind, name = kind_of(body), body["metadata"]["name"]
        if kind.kind in workloads:
            it = workloads[kind.kind]
            if it is None:
                continue
            body["spec"]["replicas"] = it.replicas
        live: Object = {**body, "metadata": {**body["metadata"], "uid": f"uid-{kind.kind}-{name}"}}
        found[kind, name] = ChildObject(live, Ownership.OURS, terminating=False)
    return found


def _as_applied(live: Object) -> Object:
    return {**live, "metadata": {name: value for name, value in live["metadata"].items() if name != "uid"}}


def owned_by(child: ChildObject, ownership: Ownership) -> ChildObject:
    return replace(child, ownership=ownership)
