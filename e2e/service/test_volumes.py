"""A cache on a volume that belongs to root, as most storage drivers create it, is written by the engine's user."""

from collections.abc import Iterator

import pytest

from e2e.in_cluster import Namespace, Object
from e2e.kind.kind_cluster import KindCluster
from e2e.service.roots_volume import OWNER_AND_MODE, roots_volume
from kvasir_operator.resources.release import IMAGE_GROUP


@pytest.fixture
def claimed(restricted: Namespace) -> Iterator[str]:
    """The path of a volume on its node, claimed as `cache` in the namespace."""
    with roots_volume(restricted, has_class=False) as volume:
        restricted.apply(claim(volume.name))
        restricted.wait("persistentvolumeclaim/cache", "jsonpath={.status.phase}=Bound")
        yield volume.path


def test_the_cache_on_a_volume_of_roots_is_writable(restricted: Namespace, claimed: str) -> None:
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
    owner, group, _ = cluster.docker("exec", node, *OWNER_AND_MODE, claimed).split()
    assert (owner, group) == ("0", str(IMAGE_GROUP))


def claim(name: str) -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "volumeName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache"}, "spec": spec}
