"""A release from a registry with a password: installed by Helm, upgraded under load, and uninstalled.

The nodes pull the images of the operator and of frontends with a pull secret. The engine's is large, so it is
loaded into them under the name that the release gives it.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.in_cluster import Namespace, Object, is_ready
from e2e.installed import DEMO, ENGINE, NAMESPACE, schedulable
from e2e.kind import cache, engine
from e2e.kind.build import binaries
from e2e.kind.cluster import Cluster
from e2e.kind.kind_cluster import KindCluster
from e2e.kind.progress import Progress
from e2e.load.under_load import load
from e2e.release.registry import Registry, registry
from e2e.service.ask import ask
from images import build, release

WATCHED, OTHER = ("team-a", "team-b"), "team-c"
VERSIONS = tuple(f"{release.package_version()}-rc.{number}" for number in (1, 2))
READY_WITHIN = 300
DEFINITION = "customresourcedefinition/inferenceservices.serving.kvasir.dev"
VALUES: Object = {
    "pullSecrets": {"operator": ["pull"], "services": ["pull"]},
    "watchNamespaces": [*WATCHED],
    "env": {"KVASIR_UPGRADE": "automatic"},
}


@dataclass(frozen=True)
class Published:
    """Two releases in a registry, and Helm."""

    cluster: KindCluster
    registry: Registry
    dist: Path
    helm: Path

    def run_helm(self, *arguments: str) -> None:
        environment = {**os.environ, **self.cluster.environment()}
        command = [str(self.helm), *arguments, f"--namespace={NAMESPACE}"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def chart(self, version: str) -> str:
        return str(self.dist / version / f"kvasir-{version}.tgz")

    def digest(self, image: str, version: str) -> str:
        lines = (self.dist / version / "images.txt").read_text().splitlines()
        (line,) = (line for line in lines if f"/kvasir-{image}:" in line)
        return line.partition("@")[2]


@pytest.fixture(scope="module")
def published(
    cluster: Cluster, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Published]:
    if not isinstance(cluster, KindCluster) or cluster.builder != "buildah":
        pytest.skip("the registry is on this machine, so it needs a cluster that was built here")
    if cluster.kubectl("get", DEFINITION, "--ignore-not-found", "--output=name"):
        pytest.skip("Kvasir is installed in this cluster: remove it with `make cluster-down`")
    folder = tmp_path_factory.mktemp("registry")
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with registry(engine.outside(), folder) as place, pytest.MonkeyPatch.context() as patched:
        with capture.global_and_fixture_disabled():
            programs = Progress(1, cache.logs()), binaries.ready(binaries.HELM)
            cluster.trust_registry(place.place)
            (folder / "auth.json").write_text(place.credentials)
            patched.setenv("REGISTRY_AUTH_FILE", str(folder / "auth.json"))
            patched.setenv("PATH", cluster.environment()["PATH"])
            build.build(["engine"], "dev", "buildah")
            for version in VERSIONS:
                publish(cluster, place, version, folder / version)
        yield Published(cluster, place, folder, programs[1]["helm"])


def publish(cluster: KindCluster, place: Registry, version: str, out: Path) -> None:
    where = f"{place.place}/kvasir"
    images = ("--images", "operator", "frontend")
    options = ("--plain-http", "--builder", "buildah", "--out", str(out))
    assert release.main([version, "--registry", where, *images, *options]) == 0
    cluster.load_image(ENGINE, schedulable(cluster), f"{where}/kvasir-engine:{version}")


@pytest.fixture(scope="module")
def installed_release(published: Published) -> Iterator[Published]:
    """The first release, with the demo in three namespaces, two of which it watches."""
    cluster = published.cluster
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull"}}
    data = {".dockerconfigjson": published.registry.credentials}
    manifest = json.dumps({**secret, "type": "kubernetes.io/dockerconfigjson", "stringData": data})
    for name in (NAMESPACE, *WATCHED, OTHER):
        cluster.kubectl("create", "namespace", name)
        Namespace(cluster, name).apply(manifest)
    values = published.dist / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    try:
        published.run_helm("install", "kvasir", published.chart(VERSIONS[0]), f"--values={values}")
        yield published
    finally:
        cluster.kubectl("delete", "namespace", *WATCHED, OTHER, NAMESPACE, "--wait=false")


def test_a_release_serves_in_the_watched_namespaces_only(installed_release: Published) -> None:
    cluster = installed_release.cluster
    demo = yaml.safe_load(DEMO.read_text())
    demo["spec"]["engine"]["dataParallelSize"] = 1
    for name in (OTHER, *WATCHED):
        Namespace(cluster, name).apply(demo)
    for name in WATCHED:
        Namespace(cluster, name).wait("kvs/demo", "condition=Ready", READY_WITHIN)
        assert answer(cluster, name)
    assert not Namespace(cluster, OTHER).children("demo")
    pods = Namespace(cluster, WATCHED[0]).get("pods")["items"]
    assert images(pods, "frontend") == {image(installed_release, "frontend", VERSIONS[0])}


def test_an_upgrade_fails_no_request(installed_release: Published) -> None:
    cluster, namespace = installed_release.cluster, Namespace(installed_release.cluster, WATCHED[0])
    # The pod of the load pulls the image of frontends.
    pull = json.dumps({"imagePullSecrets": [{"name": "pull"}]})
    namespace.kubectl("patch", "serviceaccount", "default", f"--patch={pull}")
    with load(namespace, "demo"):
        values = f"--values={installed_release.dist / 'values.yaml'}"
        installed_release.run_helm("upgrade", "kvasir", installed_release.chart(VERSIONS[1]), values)
        for name in WATCHED:
            wait_for_release(installed_release, Namespace(cluster, name), VERSIONS[1])


def test_an_uninstall_keeps_services_and_their_answers(installed_release: Published) -> None:
    cluster, namespace = installed_release.cluster, Namespace(installed_release.cluster, WATCHED[0])
    before = of_the_service(namespace)
    with load(namespace, "demo", at_least=1):  # it takes three seconds
        installed_release.run_helm("uninstall", "kvasir", "--wait", "--timeout=2m")
    of_the_operator = ("deployments,serviceaccounts", "--selector=app.kubernetes.io/part-of")
    assert not Namespace(cluster, NAMESPACE).get(*of_the_operator)["items"]
    assert cluster.kubectl("get", DEFINITION, "--output=name")
    for name in WATCHED:
        assert Namespace(cluster, name).get("kvs/demo")["status"]
        assert answer(cluster, name)
    assert of_the_service(namespace) == before


def wait_for_release(published: Published, namespace: Namespace, version: str) -> None:
    """Wait until all pods of the demo are ready and of this release."""
    wanted = {name: image(published, name, version) for name in ("frontend", "engine")}

    def holds(seen: Mapping[str, Object]) -> bool:
        pods = [pod for pod in seen.values() if component(pod)]
        return all(images(pods, name) == {wanted[name]} for name in wanted) and all(map(is_ready, pods))

    namespace.until("pods", holds, READY_WITHIN)
    namespace.wait_for_ranks("demo", 1, READY_WITHIN)


def image(published: Published, name: str, version: str) -> str:
    place = f"{published.registry.place}/kvasir/kvasir-{name}"
    return f"{place}:{version}" if name == "engine" else f"{place}@{published.digest(name, version)}"


def images(pods: list[Any], name: str) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in pods if component(pod) == name}


def of_the_service(namespace: Namespace) -> set[str]:
    """Return the UIDs of the demo's pods."""
    return {pod["metadata"]["uid"] for pod in namespace.get("pods")["items"] if component(pod)}


def component(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def answer(cluster: Cluster, namespace: str) -> str:
    with Namespace(cluster, namespace).forwarded("service/demo", 80) as url:
        return ask(url)
