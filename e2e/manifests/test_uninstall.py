"""`kubectl delete -k` of an installation on a real API server keeps everything that is shared."""

import json
from pathlib import Path

import pytest

from e2e.kind.apiserver import ApiServer
from e2e.manifests.conftest import OVERLAYS, ROOT, Object, in_namespace

DEMO = str(ROOT / "manifests/examples/demo.yaml")
DEFINITION = "customresourcedefinition/inferenceservices.serving.kvasir.dev"


def test_deleting_the_operator_alone_keeps_all_else(server: ApiServer) -> None:
    """This is the documented way to remove a cluster-wide operator and keep its services."""
    server.kubectl("apply", "--kustomize", str(ROOT / "manifests"))
    server.kubectl("apply", "--namespace=kvasir-system", "--filename", DEMO)
    server.kubectl("delete", "--kustomize", str(ROOT / "manifests/operator"), "--timeout=60s")
    for name in ("namespace/kvasir-system", DEFINITION, "kvs/demo", "clusterrole/kvasir-edit"):
        assert is_kept(server, "kvasir-system", name)
    assert not operators_objects(server, "kvasir-system")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_comes_and_goes_and_changes_no_namespace(
    server: ApiServer, tmp_path: Path, overlay: str
) -> None:
    name = f"user-of-{Path(overlay).name}"
    place = str(in_namespace(tmp_path, overlay, name))
    server.kubectl("create", "namespace", name)
    server.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=baseline")
    server.kubectl("apply", f"--namespace={name}", "--filename", DEMO)
    before = read(server, "namespace", name)["metadata"]

    server.kubectl("apply", "--kustomize", place)
    assert operators_objects(server, name)
    server.kubectl("delete", "--kustomize", place, "--timeout=60s")

    assert read(server, "namespace", name)["metadata"] == before
    assert not operators_objects(server, name)
    for kept in (DEFINITION, "kvs/demo"):
        assert is_kept(server, name, kept)


def read(server: ApiServer, kind: str, name: str) -> Object:
    found: Object = json.loads(server.kubectl("get", kind, name, "--output=json"))
    return found


def is_kept(server: ApiServer, namespace: str, name: str) -> bool:
    found = json.loads(server.kubectl("get", name, f"--namespace={namespace}", "--output=json"))
    return "deletionTimestamp" not in found["metadata"]


def operators_objects(server: ApiServer, namespace: str) -> str:
    """Return the names of the operator's own objects, in the namespace and in the whole cluster."""
    kinds = "deployment,serviceaccount,poddisruptionbudget,networkpolicy"
    rights = "role,rolebinding,clusterrole,clusterrolebinding"
    selector = "app.kubernetes.io/name=kvasir-operator"
    return server.kubectl(
        "get", f"{kinds},{rights}", f"--namespace={namespace}", f"--selector={selector}", "--output=name"
    )
