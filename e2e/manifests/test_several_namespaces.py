"""The overlay for several namespaces: permissions in those, and nowhere else."""

import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml

from e2e.kind.apiserver import apiserver
from e2e.manifests.conftest import ROOT, Render

OVERLAY = ROOT / "manifests/overlays/namespaces"
May = Callable[..., bool]


@pytest.fixture(scope="module")
def may(kubectl: str) -> Iterator[May]:
    """Whether the installed operator has a permission."""
    with apiserver() as server:
        server.kubectl("apply", "--kustomize", str(ROOT / "crds"))
        for namespace in ("kvasir-system", "team-a", "team-b", "team-c"):
            server.kubectl("create", "namespace", namespace)
        server.kubectl("apply", "--kustomize", str(OVERLAY))
        kubeconfig = server.kubeconfig_of("kvasir-system", "kvasir-operator")

        def asked(*arguments: str) -> bool:
            command = [kubectl, f"--kubeconfig={kubeconfig}", "auth", "can-i", *arguments]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            assert answer.stdout.strip() in ("yes", "no"), answer.stderr
            return answer.stdout.strip() == "yes"

        yield asked


@pytest.mark.parametrize("right", ["list inferenceservices", "patch statefulsets.apps", "delete pods"])
def test_rights_are_those_of_the_named_namespaces(may: May, right: str) -> None:
    found = {name: may(*right.split(), f"--namespace={name}") for name in ("team-a", "team-b", "team-c")}
    assert found == {"team-a": True, "team-b": True, "team-c": False}
    assert not may(*right.split(), "--all-namespaces")


def test_the_bindings_are_those_of_the_watched_namespaces(render: Render) -> None:
    objects = render(OVERLAY)
    (deployment,) = (item for item in objects if item["kind"] == "Deployment")
    environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    (watched,) = (entry["value"] for entry in environment if entry["name"] == "KVASIR_NAMESPACES")
    bound = [
        item["metadata"]["namespace"]
        for item in objects
        if (item["kind"], item["metadata"]["name"]) == ("RoleBinding", "kvasir-operator")
    ]
    assert bound == watched.split(",")
    assert not [item for item in objects if item["kind"] == "ClusterRoleBinding"]
    assert "nodes" not in yaml.safe_dump(objects)
