"""The settings of pods that a user gets without a field, and how a field changes each of them."""

from dataclasses import replace
from typing import Any

import pytest

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_operator.resources.engine_stateful_set import engine_template
from kvasir_operator.resources.frontend_deployment import frontend_template
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service

SCHEMA = CRDSchema.of_crd()
RELEASE = Release(frontend_image="frontend:1", engine_image="engine:1", version="1.0.0")
CPU: dict[str, Any] = {"resourceName": ""}


def service(**spec: Any) -> InferenceService:
    spec = {"model": {"source": "demo://"}, **spec}
    completed, problems = SCHEMA.complete({"metadata": {"name": "demo", "uid": "1"}, "spec": spec})
    assert not problems
    return parse_service(completed)


def engine(release: Release = RELEASE, **fields: Any) -> dict[str, Any]:
    """Return the pod of an engine with these fields."""
    spec: dict[str, Any] = engine_template(service(engine=fields), release, "link")["spec"]
    return spec


def frontend(release: Release = RELEASE, **fields: Any) -> dict[str, Any]:
    spec: dict[str, Any] = frontend_template(service(frontend=fields), release, "link")["spec"]
    return spec


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("pod", "read_only"),
    [
        (engine(), False),
        (engine(resourceName="amd.com/gpu"), False),
        (engine(**CPU), True),
        (frontend(), True),
        (engine(pod={"securityContext": {"readOnlyRootFilesystem": True}}), True),
        (engine(**CPU, pod={"securityContext": {"readOnlyRootFilesystem": False}}), False),
    ],
)
def test_only_pods_with_a_device_may_write_to_their_root(pod: dict[str, Any], read_only: bool) -> None:
    assert container(pod)["securityContext"]["readOnlyRootFilesystem"] is read_only


@pytest.mark.parametrize("render", [engine, frontend])
def test_a_security_field_changes_only_itself(render: Any) -> None:
    plain = container(render())["securityContext"]
    added = {"capabilities": {"add": ["IPC_LOCK"]}, "runAsUser": 1000}
    changed = container(render(pod={"securityContext": added}))["securityContext"]
    assert changed == {**plain, "runAsUser": 1000, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}


@pytest.mark.parametrize("render", [engine, frontend])
def test_volumes_are_writable_by_the_group_of_the_images(render: Any) -> None:
    found = render()["securityContext"]
    assert (found["fsGroup"], found["fsGroupChangePolicy"]) == (65532, "OnRootMismatch")
    other = render(pod={"podSecurityContext": {"fsGroup": 7, "supplementalGroups": [8]}})["securityContext"]
    assert other == {**found, "fsGroup": 7, "supplementalGroups": [8]}


@pytest.mark.parametrize("render", [engine, frontend])
def test_openshift_chooses_users_and_groups_itself(render: Any) -> None:
    pod = render(replace(RELEASE, fs_group=None))
    ids = {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"}
    assert not ids & {*pod["securityContext"], *container(pod)["securityContext"]}
    assert (
        render(replace(RELEASE, fs_group=None), pod={"podSecurityContext": {"fsGroup": 7}})["securityContext"][
            "fsGroup"
        ]
        == 7
    )


def reserved(pod: dict[str, Any]) -> list[tuple[str, str]]:
    """Return key and operator of the tolerations about NoSchedule."""
    return [(entry["key"], entry["operator"]) for entry in pod["tolerations"] if entry["effect"] == "NoSchedule"]


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({}, ["nvidia.com/gpu"]),
        ({"resourceName": "amd.com/gpu"}, ["amd.com/gpu"]),
        ({"resourceName": "nvidia.com/mig-1g.10gb"}, ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu"]),
        (CPU, []),
    ],
)
def test_engines_tolerate_the_taint_of_their_device(fields: dict[str, Any], keys: list[str]) -> None:
    assert reserved(engine(**fields)) == [(key, "Exists") for key in keys]
    assert reserved(frontend()) == []


def test_a_users_toleration_for_the_device_replaces_ours() -> None:
    theirs = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}
    assert reserved(engine(pod={"tolerations": [theirs]})) == [("nvidia.com/gpu", "Equal")]
    other = {**theirs, "key": "pool"}
    assert reserved(engine(pod={"tolerations": [other]})) == [("nvidia.com/gpu", "Exists"), ("pool", "Equal")]


@pytest.mark.parametrize(
    ("fields", "cpu", "memory"),
    [
        ({}, "2", "8Gi"),
        ({"tensorParallelSize": 8}, "9", "36Gi"),
        (CPU, "250m", "1536Mi"),
        ({**CPU, "kvCache": {"memory": "64Mi"}}, "250m", "576Mi"),
        ({**CPU, "kvCache": {"memory": "1"}}, "250m", "513Mi"),
        ({**CPU, "tensorParallelSize": 4, "nodes": 2, "kvCache": {"memory": "1Gi"}}, "500m", "3072Mi"),
    ],
)
def test_engines_request_by_kind_and_number_of_workers(fields: dict[str, Any], cpu: str, memory: str) -> None:
    assert container(engine(**fields))["resources"]["requests"] == {"cpu": cpu, "memory": memory}


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ({}, {"cpu": "100m", "memory": "256Mi"}),
        ({"requests": {"memory": "1Gi"}}, {"cpu": "100m", "memory": "1Gi"}),
        ({"limits": {"memory": "128Mi"}}, {"cpu": "100m"}),
        ({"limits": {"memory": "128Mi", "cpu": 1}}, None),
    ],
)
def test_a_default_request_never_exceeds_a_limit(given: dict[str, Any], requests: dict[str, str] | None) -> None:
    """Kubernetes requests the limit itself if there is no request, and rejects a request above the limit."""
    resources = container(frontend(pod={"resources": given}))["resources"]
    assert resources.get("requests") == requests
    assert resources.get("limits") == (
        {name: str(v) for name, v in given["limits"].items()} if "limits" in given else None
    )


@pytest.mark.parametrize(
    ("spec", "images"),
    [
        ({}, ("engine:1", "frontend:1")),
        ({"image": "both"}, ("both", "both")),
        ({"engine": {"image": "mine"}}, ("mine", "frontend:1")),
        ({"frontend": {"image": "mine"}}, ("engine:1", "mine")),
        ({"image": "both", "engine": {"image": "mine"}}, ("mine", "both")),
    ],
)
def test_an_image_of_one_component_leaves_the_other(spec: dict[str, Any], images: tuple[str, str]) -> None:
    of = service(**spec)
    templates = engine_template(of, RELEASE, "link"), frontend_template(of, RELEASE, "link")
    assert tuple(container(template["spec"])["image"] for template in templates) == images


@pytest.mark.parametrize("render", [engine, frontend])
def test_added_containers_run_around_ours(render: Any) -> None:
    added = {"initContainers": [{"name": "first"}], "sidecars": [{"name": "next", "securityContext": LOOSE}]}
    pod = render(pod=added)
    assert [each["name"] for each in pod["initContainers"]] == ["first"]
    ours, sidecar = pod["containers"]
    assert ours["name"] == render.__name__
    assert sidecar["securityContext"] == {**LOOSE, "capabilities": {"drop": ["ALL"]}}
    assert pod["initContainers"][0]["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("given", [None, {}, "text"])
def test_an_unusual_security_context_does_not_end_a_pass(given: Any) -> None:
    # the schema keeps the fields of added containers as they are
    [_, sidecar] = engine(pod={"sidecars": [{"name": "next", "securityContext": given}]})["containers"]
    assert sidecar["securityContext"] == (
        given or {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    )


@pytest.mark.parametrize("escalates", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}])
def test_escalation_is_not_denied_where_kubernetes_rejects_that(escalates: dict[str, Any]) -> None:
    pod = engine(pod={"securityContext": escalates, "sidecars": [{"name": "next", "securityContext": escalates}]})
    for each in pod["containers"]:
        assert "allowPrivilegeEscalation" not in each["securityContext"]


LOOSE: dict[str, Any] = {"allowPrivilegeEscalation": True}


def test_a_claim_is_the_containers_and_the_pods() -> None:
    claim = {"name": "nic", "resourceClaimTemplateName": "rdma"}
    pod = engine(pod={"resourceClaims": [claim]})
    assert pod["resourceClaims"] == [claim]
    resources = container(pod)["resources"]
    assert resources["claims"] == [{"name": "nic"}]
    assert resources["limits"] == {"nvidia.com/gpu": "1"}


def test_account_and_scheduler_are_the_users() -> None:
    pod = frontend(pod={"serviceAccountName": "reader", "schedulerName": "volcano"})
    assert (pod["serviceAccountName"], pod["schedulerName"]) == ("reader", "volcano")
    assert pod["automountServiceAccountToken"] is False
    assert (frontend()["serviceAccountName"], "schedulerName" in frontend()) == ("demo", False)
