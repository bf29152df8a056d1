"""The objects of `kubectl apply -k manifests/`, as kubectl renders them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from e2e.manifests.conftest import (
    KUSTOMIZATIONS,
    OVERLAYS,
    ROOT,
    Object,
    Render,
    copy_of_manifests,
    in_namespace,
)


@pytest.fixture(scope="module")
def everything(render: Render) -> list[Object]:
    return render(ROOT / "manifests")


@pytest.fixture(scope="module")
def namespaced(render: Render, tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The overlay, set up for the namespace team-a as a user does."""
    return render(in_namespace(tmp_path_factory.mktemp("namespaced"), OVERLAYS[0], "team-a"))


@pytest.fixture(scope="module")
def second(render: Render) -> list[Object]:
    return render(ROOT / "manifests/overlays/second")


def find(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name))
    return found


def identity(item: Object) -> tuple[str, str, str]:
    metadata = item["metadata"]
    return item["kind"], metadata.get("namespace", ""), metadata["name"]


def pod_spec(objects: list[Object]) -> Object:
    spec: Object = find(objects, "Deployment", "kvasir-operator")["spec"]["template"]["spec"]
    return spec


def environment(objects: list[Object]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod_spec(objects)["containers"][0]["env"]}


def test_one_command_installs_definition_rights_and_operator(everything: list[Object]) -> None:
    kinds = {item["kind"] for item in everything}
    assert {"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Deployment"} <= kinds


def test_the_definition_is_the_one_that_kvasir_up_uses(everything: list[Object]) -> None:
    name = "inferenceservices.serving.kvasir.dev"
    ours = yaml.safe_load((ROOT / "crds" / f"{name}.yaml").read_text())
    assert find(everything, "CustomResourceDefinition", name)["spec"] == ours["spec"]


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_no_role_may_do_more_with_secrets_than_create(render: Render, kustomization: str) -> None:
    """A dry-run create shows whether a name is in use. The operator never reads, changes or deletes a Secret."""
    rules = [rule for item in render(ROOT / kustomization) for rule in item.get("rules", ())]
    on_secrets = [rule for rule in rules if {"*", "secrets"} & set(rule["resources"])]
    assert [rule["verbs"] for rule in on_secrets] == [["create"]]


@pytest.mark.parametrize("kustomization", ["manifests/operator", *OVERLAYS])
def test_an_install_holds_neither_namespace_nor_definition(render: Render, kustomization: str) -> None:
    """`kubectl delete -k` removes every object of a kustomization, and these two may be shared."""
    kinds = {item["kind"] for item in render(ROOT / kustomization)}
    assert not kinds & {"Namespace", "CustomResourceDefinition"}
    assert "Deployment" in kinds


def test_nothing_is_granted_by_wildcard(everything: list[Object]) -> None:
    for role in everything:
        for rule in role.get("rules", ()):
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"]), role["metadata"]["name"]


def test_the_operator_cannot_grant_permissions_or_exec_in_pods(everything: list[Object]) -> None:
    rules = find(everything, "ClusterRole", "kvasir-operator")["rules"]
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert not resources & {"roles", "rolebindings", "clusterroles", "clusterrolebindings", "pods/exec"}
    assert not {verb for rule in rules for verb in rule["verbs"]} & {"bind", "escalate", "impersonate"}


def test_every_binding_binds_the_operators_account(everything: list[Object]) -> None:
    for binding in everything:
        if binding["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            subject = {"kind": "ServiceAccount", "name": "kvasir-operator", "namespace": "kvasir-system"}
            assert binding["subjects"] == [subject]


def test_the_pods_meet_the_restricted_pod_security_standard(everything: list[Object]) -> None:
    spec = pod_spec(everything)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    namespace = find(everything, "Namespace", "kvasir-system")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_image_or_the_platform_chooses_the_pods_user(everything: list[Object]) -> None:
    """OpenShift rejects a user outside the namespace's range. runAsNonRoot needs a numeric USER in the image."""
    users = set(re.findall(r"^USER (.*)$", (ROOT / "images/Dockerfile").read_text(), re.MULTILINE))
    assert users == {"65532:65532"}
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod_spec(everything)["securityContext"])


def test_selectors_select_the_operators_pods(everything: list[Object]) -> None:
    deployment = find(everything, "Deployment", "kvasir-operator")["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    assert deployment["selector"]["matchLabels"].items() <= labels
    budget = find(everything, "PodDisruptionBudget", "kvasir-operator")["spec"]["selector"]
    policy = find(everything, "NetworkPolicy", "kvasir-operator")["spec"]["podSelector"]
    assert budget["matchLabels"].items() <= labels
    assert policy["matchLabels"].items() <= labels


def test_kustomizes_images_reach_the_operator_and_its_objects(render: Render, tmp_path: Path) -> None:
    operator = copy_of_manifests(tmp_path) / "operator"
    kustomization = yaml.safe_load((operator / "kustomization.yaml").read_text())
    for image in kustomization["images"]:
        image |= {"newName": f"registry.example/{image['name']}", "newTag": "1.2"}
    (operator / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    objects = render(operator)
    assert pod_spec(objects)["containers"][0]["image"] == "registry.example/kvasir-operator:1.2"
    assert environment(objects)["KVASIR_FRONTEND_IMAGE"] == "registry.example/kvasir-frontend:1.2"
    assert environment(objects)["KVASIR_ENGINE_IMAGE"] == "registry.example/kvasir-engine:1.2"


def test_an_overlay_can_set_the_images_too(render: Render, tmp_path: Path) -> None:
    manifests = copy_of_manifests(tmp_path)
    overlay = manifests / "overlays/mine"
    overlay.mkdir()
    shutil.copy(manifests / "operator/image-fields.yaml", overlay)
    kustomization = {
        "resources": ["../../operator"],
        "configurations": ["image-fields.yaml"],
        "images": [{"name": "kvasir-engine", "newName": "registry.example/engine", "newTag": "1.2"}],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    assert environment(render(overlay))["KVASIR_ENGINE_IMAGE"] == "registry.example/engine:1.2"


def test_the_namespaced_operator_has_no_permissions_elsewhere(namespaced: list[Object]) -> None:
    assert not {"ClusterRole", "ClusterRoleBinding"} & {item["kind"] for item in namespaced}
    assert {item["metadata"]["namespace"] for item in namespaced} == {"team-a"}


def test_the_namespaced_operators_bindings_follow_it(namespaced: list[Object]) -> None:
    for binding in (item for item in namespaced if item["kind"] == "RoleBinding"):
        assert binding["roleRef"]["kind"] == "Role"
        assert binding["subjects"][0]["namespace"] == "team-a"


def test_the_namespaced_operator_may_do_the_same_there(everything: list[Object], namespaced: list[Object]) -> None:
    ours = find(everything, "ClusterRole", "kvasir-operator")["rules"]
    assert find(namespaced, "Role", "kvasir-operator")["rules"] == [r for r in ours if r["resources"] != ["nodes"]]


def test_the_namespaced_operator_watches_its_own_namespace(namespaced: list[Object]) -> None:
    env = {entry["name"]: entry for entry in pod_spec(namespaced)["containers"][0]["env"]}
    assert env["KVASIR_NAMESPACES"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_every_variable_is_an_option_of_the_operator(render: Render, kustomization: str) -> None:
    """A misspelt variable would be ignored silently."""
    (deployment,) = (item for item in render(ROOT / kustomization) if item["kind"] == "Deployment")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    names = {entry["name"] for entry in env if entry["name"].startswith("KVASIR_")}
    command = [sys.executable, "-m", "kvasir_operator", "--help"]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    options = {f"KVASIR_{flag.replace('-', '_').upper()}" for flag in re.findall(r"--([a-z-]+)", usage)}
    assert names <= options


def test_two_installs_share_no_object(everything: list[Object], second: list[Object]) -> None:
    first = {identity(item) for item in everything}
    assert not first & {identity(item) for item in second}


def test_a_class_is_in_the_environment_and_in_the_leases_name(second: list[Object]) -> None:
    (lease,) = find(second, "Role", "kvasir-operator-lease-second")["rules"][1]["resourceNames"]
    spec = find(second, "Deployment", "kvasir-operator-second")["spec"]["template"]["spec"]
    values = {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}
    assert lease == f"kvasir-operator-{values['KVASIR_OPERATOR_CLASS']}"


def test_the_second_operators_bindings_follow_its_names(second: list[Object]) -> None:
    roles = {(item["kind"], item["metadata"]["name"]) for item in second if "rules" in item}
    bindings = [item for item in second if "roleRef" in item]
    assert {(item["roleRef"]["kind"], item["roleRef"]["name"]) for item in bindings} == roles
    account = {"kind": "ServiceAccount", "name": "kvasir-operator-second", "namespace": "kvasir-second"}
    assert all(item["subjects"] == [account] for item in bindings)


def test_a_second_operator_may_be_one_namespaces(render: Render, tmp_path: Path) -> None:
    place = copy_of_manifests(tmp_path) / "overlays/second/kustomization.yaml"
    place.write_text(place.read_text().replace("[../../operator]", "[../namespaced]"))
    objects = render(place.parent)
    assert {item["metadata"].get("namespace") for item in objects} == {"kvasir-second"}
    assert find(objects, "RoleBinding", "kvasir-operator-second")["roleRef"]["name"] == "kvasir-operator-second"


def test_the_monitoring_has_its_objects_and_the_dashboard(render: Render) -> None:
    objects = render(ROOT / "manifests/monitoring")
    assert {item["kind"] for item in objects} == {"ConfigMap", "PodMonitor", "PrometheusRule"}
    dashboard = find(objects, "ConfigMap", "kvasir-dashboard")
    assert dashboard["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert dashboard["data"].keys() == {"kvasir.json"}
