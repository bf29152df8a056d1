"""The operator's account with the permissions of the manifests, in a test's namespace."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import yaml

from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import SERVICE_ACCOUNT, Kind

_MANIFEST: Final = Path(__file__).parents[3] / "manifests" / "operator" / "rbac.yaml"
_GROUP: Final = "rbac.authorization.k8s.io/v1"
_KINDS: Final = {
    "ClusterRole": Kind(_GROUP, "ClusterRole", "clusterroles"),
    "ClusterRoleBinding": Kind(_GROUP, "ClusterRoleBinding", "clusterrolebindings"),
    "Role": Kind(_GROUP, "Role", "roles"),
    "RoleBinding": Kind(_GROUP, "RoleBinding", "rolebindings"),
    "ServiceAccount": SERVICE_ACCOUNT,
}


@contextlib.asynccontextmanager
async def rights_of_the_manifests(world: World, without: str = "") -> AsyncIterator[str]:
    """Create the ServiceAccount and its bindings, without permissions on the resource `without`. Yield its name."""
    cluster_wide = []
    for document in _documents(without):
        namespace = "" if document["kind"].startswith("Cluster") else world.namespace
        document["metadata"]["namespace"] = namespace
        for subject in document.get("subjects", ()):
            subject["namespace"] = world.namespace
        kind = _KINDS[document["kind"]]
        made = await world.cluster.create(kind, namespace, document)
        if not namespace:
            made["metadata"]["namespace"] = ""
            cluster_wide.append((kind, made))
    try:
        yield "kvasir-operator"
    finally:
        for kind, made in cluster_wide:
            await world.cluster.delete(kind, made)


def _documents(without: str) -> list[Object]:
    documents = list(yaml.safe_load_all(_MANIFEST.read_text()))
    for document in documents:
        if "rules" in document:
            document["rules"] = [rule for rule in document["rules"] if without not in rule["resources"]]
    return documents
