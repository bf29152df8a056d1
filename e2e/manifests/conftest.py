"""Fixtures of this folder: manifests, the chart, services, kubectl, helm, kube-score, and an API server."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from e2e.installed import wait_for_definition
from e2e.kind.apiserver import ApiServer, apiserver
from e2e.kind.build import binaries
from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_operator.link_keys import new_link_keys, new_link_secret_name
from kvasir_operator.resources.children import children
from kvasir_operator.resources.release import Release
from kvasir_operator.resources.security import link_secret
from kvasir_operator.spec import parse_service

ROOT = Path(__file__).resolve().parents[2]
Object = dict[str, Any]
Render = Callable[[Path], list[Object]]
"""Renders a kustomization to its objects."""
OVERLAYS = ("manifests/overlays/namespaced", "manifests/overlays/second")
"""Installations in addition to the cluster's first one: a namespace and the CRD exist already."""
KUSTOMIZATIONS = ("manifests", *OVERLAYS)
CHART = ROOT / "manifests/chart"
_SEPARATE: Object = {"crds": {"install": False}, "userRoles": {"install": False}}
CHART_VALUES: dict[str, Object] = {
    "default": {},
    "namespaced": {"watchNamespaces": ["kvasir-system"], **_SEPARATE},
    "namespaces": {"watchNamespaces": ["team-a", "team-b"], **_SEPARATE},
    "second": {"operatorClass": "second", **_SEPARATE},
    "everything": {
        "images": {
            "registry": "registry.example/team/",
            "tag": "1.2",
            "operator": {"digest": f"sha256:{'0' * 64}"},
        },
        "pullSecrets": {"operator": ["pull"], "services": ["pull"]},
        "resources": {"limits": {"memory": "1Gi", "ephemeral-storage": "1Gi"}},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "a"},
        "env": {"KVASIR_MAX_UPGRADES": 3},
        "networkPolicy": {"install": False},
        "monitoring": {"namespaces": ["prometheus"], "dashboard": True},
    },
}
"""Values of the chart. The second to fourth are those of an overlay."""
MINIMAL: Object = {
    "apiVersion": "serving.kvasir.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "minimal"},
    "spec": {"model": {"source": "hf://org/name"}},
}
SERVICES: dict[str, Object] = {
    "demo": yaml.safe_load((ROOT / "manifests/examples/demo.yaml").read_text()),
    "minimal": MINIMAL,
    "full": next(yaml.safe_load_all((ROOT / "tests/operator/golden/full.yaml").read_text())),
}
"""The example, a service with the fewest fields, and one with every field."""


@pytest.fixture(scope="session")
def kubectl() -> str:
    return str(binaries.ready(binaries.API)["kubectl"])


@pytest.fixture(scope="session")
def kube_score() -> str:
    return str(binaries.ready(binaries.SCORE)["kube-score"])


@pytest.fixture(scope="session")
def render(kubectl: str) -> Render:
    def rendered(path: Path) -> list[Object]:
        answer = subprocess.run([kubectl, "kustomize", str(path)], capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        return [document for document in yaml.safe_load_all(answer.stdout) if document]

    return rendered


class Chart(Protocol):
    """Renders the chart to its objects."""

    def __call__(self, namespace: str, *, place: Path = CHART, **values: Any) -> list[Object]: ...


@pytest.fixture(scope="session")
def helm() -> str:
    return str(binaries.ready(binaries.HELM)["helm"])


@pytest.fixture(scope="session")
def chart(helm: str) -> Chart:
    def rendered(namespace: str, *, place: Path = CHART, **values: Any) -> list[Object]:
        command = [helm, "template", "kvasir", str(place), f"--namespace={namespace}", "--values=-"]
        manifest = yaml.safe_dump(values)
        answer = subprocess.run(command, input=manifest, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        return [document for document in yaml.safe_load_all(answer.stdout) if document]

    return rendered


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    """An API server with the CRD of InferenceServices."""
    with apiserver() as running:
        running.kubectl("apply", "--filename", str(ROOT / "crds"))
        wait_for_definition(running.kubectl)
        yield running


def copy_of_manifests(directory: Path) -> Path:
    for name in ("crds", "manifests"):
        shutil.copytree(ROOT / name, directory / name)
    return directory / "manifests"


def in_namespace(directory: Path, overlay: str, namespace: str) -> Path:
    """Return a copy of an overlay, set up for this namespace as a user does."""
    place = copy_of_manifests(directory).parent / overlay
    kustomization = place / "kustomization.yaml"
    text, changes = re.subn(r"^namespace: .*$", f"namespace: {namespace}", kustomization.read_text(), flags=re.M)
    assert changes == 1
    kustomization.write_text(text)
    return place


def made_of(service: Object) -> list[Object]:
    """Return the objects that the operator creates for it."""
    metadata = {"namespace": "default", "uid": "0f0e0d0c-0000-4000-8000-000000000001", **service["metadata"]}
    completed, problems = CRDSchema.of_crd().complete({**service, "metadata": metadata})
    assert not problems
    parsed = parse_service(completed)
    release = Release("kvasir-frontend:1.0", "kvasir-engine:1.0", version="1.0", operator_namespace="kvasir-system")
    secret = new_link_secret_name(parsed)
    return [link_secret(parsed, secret, new_link_keys()), *children(parsed, release, secret)]
