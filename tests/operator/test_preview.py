import asyncio
from pathlib import Path
from typing import Final

import pytest

from kvasir_contract.exits import ExitCode
from kvasir_operator.cluster.cluster_client import Cluster
from kvasir_operator.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    HTTP_ROUTE,
    NETWORK_POLICY,
    STATEFUL_SET,
)
from kvasir_operator.operator_settings import parse_preview, parse_settings
from kvasir_operator.preview import _release, preview, with_defaults
from kvasir_operator.resources.names import RELEASE_ANNOTATION
from mock_cluster import Clock, MockCluster, refusal
from mock_operator import Operator
from operator_facts import SCHEMA
from preview_manifests import document, manifest

NAMESPACE: Final = ("--operator-namespace", "kvasir-system")
IMAGES: Final = ["--frontend-image", "frontend:1", "--engine-image", "engine:1", *NAMESPACE]


def test_preview_of_a_bad_manifest_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert preview([str(tmp_path / "absent.yaml"), *IMAGES]) == ExitCode.USER_ERROR
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("kvasir-operator plan: ")
    assert shown.err.count("\n") == 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MockCluster:
    mock = MockCluster()

    async def connect() -> MockCluster:
        return mock

    monkeypatch.setattr(Cluster, "connect", connect)
    monkeypatch.setenv("KUBECONFIG", "named")
    return mock


def writes(cluster: MockCluster) -> set[str]:
    return {
        verb for verb, _ in cluster.calls if verb not in ("get", "list", "apply-dry", "create-dry", "replace-dry")
    }


def test_preview_of_a_new_service(cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert preview([str(manifest(tmp_path, document())), *IMAGES]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["# default/demo", "create Secret with new link keys"]
    assert "create StatefulSet/demo-engine" in lines
    assert "create Deployment/demo-frontend" in lines
    assert writes(cluster) == set()
    assert cluster.objects == {}


def running(cluster: MockCluster) -> None:
    """Create the service and let the operator complete all changes."""

    async def settle() -> None:
        cluster.add_service()
        operator = Operator(cluster, Clock())
        operator.restart(parse_settings(IMAGES).release)
        await operator.settle()

    asyncio.run(settle())
    cluster.calls.clear()


def test_preview_of_an_unchanged_service(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(cluster)
    assert preview([str(manifest(tmp_path, document())), *IMAGES]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith(("create", "update", "delete", "adopt", "refused"))]
    assert writes(cluster) == set()


def test_preview_of_a_change_names_the_fields(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(cluster)
    changed = document(frontend={"replicas": 3}, network={"policy": False})
    assert preview([str(manifest(tmp_path, changed)), *IMAGES]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "update Deployment/demo-frontend\n    spec.replicas: 1 → 3\n" in out
    assert "delete NetworkPolicy/demo-engine: no longer needed" in out
    assert "StatefulSet" not in out
    assert writes(cluster) == set()
    assert cluster.names(NETWORK_POLICY) == ["demo-engine", "demo-frontend"]


def test_preview_shows_refusals_and_the_other_actions(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.refused["apply-dry", DEPLOYMENT] = refusal(500, 'unknown field "nmae"')
    assert preview([str(manifest(tmp_path, document())), *IMAGES]) == ExitCode.USER_ERROR
    out = capsys.readouterr().out
    assert 'refused Deployment/demo-frontend: unknown field "nmae"' in out
    assert "create StatefulSet/demo-engine" in out
    assert "create Deployment/demo-frontend" not in out


def test_preview_continues_after_a_refused_service(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = document("bad", engine={"dataParallelSize": "many"})
    file = manifest(tmp_path, bad, document("good"))
    assert preview([str(file), *IMAGES]) == ExitCode.USER_ERROR
    out = capsys.readouterr().out
    assert out.startswith("# default/bad\nrefused: ")
    assert "# default/good\ncreate Secret" in out


def test_preview_leaves_services_of_another_class_alone(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preview([str(manifest(tmp_path, document(operatorClass="gpu"))), *IMAGES]) == ExitCode.OK
    assert "not handled" in capsys.readouterr().out


def test_preview_of_a_newer_release_changes_no_pods(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(cluster)
    file = manifest(tmp_path, document())
    newer = ["--frontend-image", "frontend:9", "--engine-image", "engine:9"]
    preview([str(file), *newer])
    out = capsys.readouterr().out
    assert "update StatefulSet" not in out
    assert "UpgradeAvailable=True UpgradePending: release " in out
    assert RELEASE_ANNOTATION in out
    assert cluster.names(STATEFUL_SET) == ["demo-engine"]


def test_preview_keeps_the_annotations_of_the_file(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(cluster)
    newer = ["--frontend-image", "frontend:9", "--engine-image", "engine:9"]
    asked = document()
    release = parse_settings(newer).release.id
    asked["metadata"]["annotations"] = {RELEASE_ANNOTATION: release}
    preview([str(manifest(tmp_path, asked)), *newer])
    out = capsys.readouterr().out
    assert "update StatefulSet/demo-engine" in out
    assert "engine:9" in out


def test_preview_of_an_unchanged_service_writes_nothing(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(cluster)
    preview([str(manifest(tmp_path, document())), *IMAGES])
    assert "writing" not in capsys.readouterr().out


def test_preview_reads_the_images_of_the_operator(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = [{"name": f"KVASIR_{each}_IMAGE", "value": f"{each.lower()}:7"} for each in ("FRONTEND", "ENGINE")]
    operator = {"metadata": {"name": "kvasir-operator", "namespace": "kvasir-system"}}
    cluster.put(DEPLOYMENT, {**operator, "spec": {"template": {"spec": {"containers": [{"env": env}]}}}})
    assert preview([str(manifest(tmp_path, document()))]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("# images: frontend:7, engine:7\n")


async def test_preview_has_the_settings_of_the_operator(cluster: MockCluster) -> None:
    variables = {
        "KVASIR_IMAGE_PULL_SECRETS": "one, two",
        "KVASIR_INHERIT_LABELS": "team,cost/",
        "KVASIR_INHERIT_ANNOTATIONS": "note",
        "KVASIR_MONITORING_NAMESPACES": "prometheus",
        "KVASIR_PROFILES": "/in/its/pod",
    }
    env = [{"name": name, "value": value} for name, value in variables.items()]
    operator = {"metadata": {"name": "kvasir-operator", "namespace": "kvasir-system"}}
    cluster.put(DEPLOYMENT, {**operator, "spec": {"template": {"spec": {"containers": [{"env": env}]}}}})
    _, _, settings = parse_preview(["service.yaml"])
    release = await _release(cluster, settings)
    assert release.image_pull_secrets == ("one", "two")
    assert (release.inherited_labels, release.inherited_annotations) == (("team", "cost/"), ("note",))
    assert release.monitoring_namespaces == ("prometheus",)


def test_preview_reads_the_profiles_of_the_operator(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(manifest(tmp_path, document(profile="h100")))
    assert preview([file, *IMAGES]) == ExitCode.USER_ERROR
    assert "there is no profile h100" in capsys.readouterr().out
    metadata = {"name": "kvasir-profiles", "namespace": "kvasir-system"}
    cluster.put(CONFIG_MAP, {"metadata": metadata, "data": {"h100.yaml": "engine: {maxNumSeqs: 7}"}})
    assert preview([file, *IMAGES]) == ExitCode.OK


def test_preview_says_that_profiles_cannot_be_read(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.refused["get", CONFIG_MAP] = refusal(403, "forbidden")
    preview([str(manifest(tmp_path, document())), *IMAGES])
    assert "profiles cannot be read, so this plan is without them: forbidden" in capsys.readouterr().out


def test_preview_of_a_route_works_without_the_gateway_api(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.missing_kinds.add(HTTP_ROUTE)
    exposed = document(expose={"host": "llm.example.com", "gateway": {"name": "public"}})
    assert preview([str(manifest(tmp_path, exposed)), *IMAGES]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "create HTTPRoute" not in out
    assert "Exposed=False RouteRefused" in out


def test_preview_leaves_the_group_of_volumes_to_openshift(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(cluster)
    file = str(manifest(tmp_path, document()))
    assert preview([file, *IMAGES]) == ExitCode.OK
    assert "StatefulSet" not in capsys.readouterr().out
    cluster.api_groups.add("security.openshift.io")
    assert preview([file, *IMAGES]) == ExitCode.OK
    assert "update StatefulSet/demo-engine" in capsys.readouterr().out


def test_preview_without_rights_takes_the_default_images(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.refused["get", DEPLOYMENT] = refusal(403)
    assert preview([str(manifest(tmp_path, document(network={"policy": False})))]) == ExitCode.USER_ERROR
    assert capsys.readouterr().out.startswith("# images: kvasir-frontend:dev, kvasir-engine:dev\n")


@pytest.mark.parametrize("arguments", [["--offline"], []])
def test_preview_works_offline(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    bad = document("bad", engine={"kvCache": {"memory": "many"}})
    assert preview([str(manifest(tmp_path, document())), *arguments]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "create StatefulSet/demo-engine\n" in out
    assert "engines 0/1, frontends 0/1" in out
    assert preview([str(manifest(tmp_path, bad)), *arguments]) == ExitCode.USER_ERROR
    assert "refused: spec.engine.kvCache.memory" in capsys.readouterr().out


def test_the_offline_defaults_are_those_of_the_schema() -> None:
    filled = with_defaults(document())
    assert filled["spec"] == SCHEMA.complete(document())[0]["spec"]


def test_preview_without_a_cluster_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert preview([str(manifest(tmp_path, document())), *IMAGES]) == ExitCode.USER_ERROR
    assert capsys.readouterr().err.startswith("kvasir-operator plan: no cluster")
