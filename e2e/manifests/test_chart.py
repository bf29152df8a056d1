"""The Helm chart renders the objects that kustomize renders."""

import copy
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.manifests.conftest import CHART, CHART_VALUES, ROOT, Chart, Object, Render

KEPT = {"helm.sh/resource-policy": "keep"}


def by_identity(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    found = {
        (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item for item in objects
    }
    assert len(found) == len(objects)
    return found


def environment(deployment: Object) -> list[Object]:
    found: list[Object] = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return found


def assert_equal(chart: list[Object], kustomize: list[Object]) -> None:
    ours, theirs = by_identity(chart), by_identity(kustomize)
    assert ours.keys() == theirs.keys()
    for identity, item in ours.items():
        for each in (item, theirs[identity]):
            if each["kind"] == "Deployment":
                environment(each).sort(key=lambda entry: str(entry["name"]))
        assert item == theirs[identity]


def test_default_values_render_the_objects_of_manifests(chart: Chart, render: Render) -> None:
    """Helm creates the namespace, and keeps the definition when the chart is uninstalled."""
    expected = [item for item in render(ROOT / "manifests") if item["kind"] != "Namespace"]
    for item in expected:
        if item["kind"] == "CustomResourceDefinition":
            item["metadata"]["annotations"] = KEPT
    assert_equal(chart("kvasir-system"), expected)


def test_its_own_namespace_renders_the_overlay_namespaced(chart: Chart, render: Render) -> None:
    expected = render(ROOT / "manifests/overlays/namespaced")
    (deployment,) = (item for item in expected if item["kind"] == "Deployment")
    (watched,) = (entry for entry in environment(deployment) if entry["name"] == "KVASIR_NAMESPACES")
    del watched["valueFrom"]
    watched["value"] = "kvasir-system"
    assert_equal(chart("kvasir-system", **CHART_VALUES["namespaced"]), expected)


def test_several_namespaces_render_the_overlay_with_roles(chart: Chart, render: Render) -> None:
    expected = []
    for item in render(ROOT / "manifests/overlays/namespaces"):
        if item["kind"] == "ClusterRole":
            for namespace in ("team-a", "team-b"):
                role = copy.deepcopy(item)
                role["kind"] = "Role"
                role["metadata"]["namespace"] = namespace
                expected.append(role)
            continue
        if item["metadata"].get("namespace") != "kvasir-system":
            item["roleRef"]["kind"] = "Role"
            item["metadata"].setdefault("labels", {})
        expected.append(item)
    found = chart("kvasir-system", **CHART_VALUES["namespaces"])
    for item in found:
        if item["metadata"]["namespace"] != "kvasir-system" and item["kind"] == "RoleBinding":
            item["metadata"]["labels"] = {}
    assert_equal(found, expected)


def test_a_class_renders_the_overlay_second(chart: Chart, render: Render) -> None:
    found = chart("kvasir-second", **CHART_VALUES["second"])
    assert_equal(found, render(ROOT / "manifests/overlays/second"))


def test_monitoring_renders_the_objects_of_its_folder(chart: Chart, render: Render) -> None:
    monitoring = {"podMonitors": True, "alerts": True, "dashboard": True}
    before = by_identity(chart("kvasir-system")).keys()
    after = chart("kvasir-system", monitoring=monitoring)
    added = [item for identity, item in by_identity(after).items() if identity not in before]
    assert_equal(added, render(ROOT / "manifests/monitoring"))


def test_every_value_reaches_the_operator(chart: Chart) -> None:
    objects = chart("kvasir-system", **CHART_VALUES["everything"])
    (deployment,) = (item for item in objects if item["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    given: Mapping[str, Any] = CHART_VALUES["everything"]
    names = {entry["name"]: entry.get("value") for entry in environment(deployment)}
    digest = given["images"]["operator"]["digest"]
    assert pod["containers"][0]["image"] == f"registry.example/team/kvasir-operator@{digest}"
    assert names["KVASIR_ENGINE_IMAGE"] == "registry.example/team/kvasir-engine:1.2"
    assert names["KVASIR_IMAGE_PULL_SECRETS"] == "pull"
    assert names["KVASIR_MONITORING_NAMESPACES"] == "prometheus"
    assert names["KVASIR_MAX_UPGRADES"] == "3"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["containers"][0]["resources"] == given["resources"]
    assert pod["nodeSelector"] == given["nodeSelector"]
    assert deployment["spec"]["template"]["metadata"]["labels"]["team"] == "a"
    assert "NetworkPolicy" not in {item["kind"] for item in objects}


def test_settings_of_any_type_are_text(chart: Chart) -> None:
    given = {
        "KVASIR_MAX_UPGRADES": 10_000_000,
        "KVASIR_RESYNC": 0.5,
        "HTTPS_PROXY": "http://proxy",
        "POD_NAME": "a",
    }
    (deployment,) = (item for item in chart("kvasir-system", env=given) if item["kind"] == "Deployment")
    found = {entry["name"]: entry for entry in environment(deployment)}
    assert [found[name] for name in given] == [
        {"name": "KVASIR_MAX_UPGRADES", "value": "10000000"},
        {"name": "KVASIR_RESYNC", "value": "0.5"},
        {"name": "HTTPS_PROXY", "value": "http://proxy"},
        {"name": "POD_NAME", "value": "a"},
    ]


def test_runbooks_name_the_operator_of_a_class(chart: Chart) -> None:
    objects = chart("kvasir-second", operatorClass="second", monitoring={"alerts": True})
    (rules,) = (item for item in objects if item["kind"] == "PrometheusRule")
    names = set(re.findall(r"deploy/kvasir-operator\S*", yaml.safe_dump(rules)))
    assert names == {"deploy/kvasir-operator-second"}


@pytest.mark.parametrize("name", CHART_VALUES)
def test_lint_finds_nothing(helm: str, tmp_path: Path, name: str) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(CHART_VALUES[name]))
    command = [helm, "lint", "--strict", str(CHART), f"--values={values}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_an_unknown_value_is_rejected(helm: str) -> None:
    command = [helm, "template", "kvasir", str(CHART), "--set", "image.tag=1"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode != 0
    assert "image" in answer.stderr


def test_a_package_renders_the_same_objects(helm: str, chart: Chart, tmp_path: Path) -> None:
    """A package contains copies of the folders to which the chart has symbolic links."""
    subprocess.run([helm, "package", str(CHART), f"--destination={tmp_path}"], check=True, capture_output=True)
    (package,) = tmp_path.glob("*.tgz")
    assert chart("kvasir-system", place=package) == chart("kvasir-system")
