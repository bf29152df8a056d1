"""A cache on a volume that belongs to root, as most storage drivers create it, is written by the engine's user."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Final

import pytest

from e2e.in_cluster import Namespace, Object
from e2e.installed import schedulable
from e2e.kind.kind_cluster import KindCluster
from kvasir_operator.resources.release import IMAGE_GROUP

HOSTNAME: Final = "kubernetes.io/hostname"
OWNER_AND_MODE: Final = ("stat", "--format=%u %g %a")


@pytest.fixture
def roots_volume(restricted: Namespace) -> Iterator[str]:
    """A directory of a node with owner root and mode 0755, claimed as `cache` in the namespace. Yield its path.

    It is a local volume, because Kubernetes leaves the owner of a hostPath volume alone.
    """
    cluster = restricted.cluster
    if not isinstance(cluster, KindCluster):
        pytest.skip("tests create no directories on nodes of the cluster of KUBECONFIG")
    node, name = schedulable(cluster)[0], f"kvasir-{uuid.uuid4().hex[:8]}"
    path = f"/var/{name}"
    label = json.loads(cluster.kubectl("get", "node", node, "--output", "json"))["metadata"]["labels"][HOSTNAME]
    with contextlib.ExitStack() as cleanup:
        cluster.docker("exec", node, "mkdir", "--mode=0755", path)
        cleanup.callback(cluster.docker, "exec", node, "rm", "-rf", path)
        assert cluster.docker("exec", node, *OWNER_AND_MODE, path).split() == ["0", "0", "755"]
        for manifest in (volume(name, path, label), claim(name)):
            restricted.apply(manifest)
        cleanup.callback(cluster.kubectl, "delete", "persistentvolume", name, "--wait=false")
        restricted.wait("persistentvolumeclaim/cache", "jsonpath={.status.phase}=Bound")
        yield path


def test_the_cache_on_a_volume_of_roots_is_writable(restricted: Namespace, roots_volume: str) -> None:
    pod = {
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}],
        "volumeMounts": [{"name": "cache", "mountPath": "/data"}],
        "env": [{"name": "HF_HOME", "value": "/data"}],
    }
    engine = {"resourceName": "", "kvCache": {"memory": "64Mi"}, "pod": pod}
    restricted.apply(
        {
            "apiVersion": "serving.kvasir.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo"},
            "spec": {"model": {"source": "demo://"}, "engine": engine},
        }
    )
    restricted.wait_for_ranks("demo", 1)
    script = (
        'mkdir "$HF_HOME/hub" && touch "$HF_HOME/hub/model" && id -u && stat --format="%u %g" "$HF_HOME/hub/model"'
    )
    written = restricted.kubectl("exec", "demo-engine-0", "--", "sh", "-c", script).split()
    user = written[0]
    assert user != "0"
    assert written[1:] == [user, str(IMAGE_GROUP)]
    cluster = restricted.cluster
    assert isinstance(cluster, KindCluster)
    node = restricted.get("pod/demo-engine-0")["spec"]["nodeName"]
    owner, group, _ = cluster.docker("exec", node, *OWNER_AND_MODE, roots_volume).split()
    assert (owner, group) == ("0", str(IMAGE_GROUP))


def volume(name: str, path: str, node: str) -> Object:
    """Return a local volume on the node with this host name."""
    here = {"key": HOSTNAME, "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "local": {"path": path},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def claim(name: str) -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "volumeName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache"}, "spec": spec}
