"""A directory of a node that belongs to root, as most storage drivers create it, as a PersistentVolume."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from e2e.in_cluster import Namespace, Object
from e2e.installed import schedulable
from e2e.kind.kind_cluster import KindCluster

OWNER_AND_MODE: Final = ("stat", "--format=%u %g %a")
_HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True)
class RootsVolume:
    name: str
    path: str  # on the node


@contextlib.contextmanager
def roots_volume(namespace: Namespace, *, has_class: bool) -> Iterator[RootsVolume]:
    """Yield the volume, of owner root and mode 0755. `has_class`: its storage class has its name; else "".

    It is a local volume, because Kubernetes leaves the owner of a hostPath volume alone.
    """
    cluster = namespace.cluster
    if not isinstance(cluster, KindCluster):
        pytest.skip("tests create no directories on nodes of the cluster of KUBECONFIG")
    node, name = schedulable(cluster)[0], f"kvasir-{uuid.uuid4().hex[:8]}"
    path = f"/var/{name}"
    host = json.loads(cluster.kubectl("get", "node", node, "--output", "json"))["metadata"]["labels"][_HOSTNAME]
    with contextlib.ExitStack() as cleanup:
        cluster.docker("exec", node, "mkdir", "--mode=0755", path)
        cleanup.callback(cluster.docker, "exec", node, "rm", "-rf", path)
        assert cluster.docker("exec", node, *OWNER_AND_MODE, path).split() == ["0", "0", "755"]
        namespace.apply(_manifest(name, path, host, name if has_class else ""))
        cleanup.callback(cluster.kubectl, "delete", "persistentvolume", name, "--wait=false")
        yield RootsVolume(name, path)


def _manifest(name: str, path: str, host: str, storage_class: str) -> Object:
    here = {"key": _HOSTNAME, "operator": "In", "values": [host]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": storage_class,
        "local": {"path": path},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
