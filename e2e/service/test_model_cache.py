"""A cache on a volume of root's is filled once, from a stand-in of the hub that counts the bytes it sends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from e2e.in_cluster import Namespace, idle_pod, is_ready
from e2e.installed import image_of_frontends
from e2e.service.ask import ask
from e2e.service.roots_volume import roots_volume

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = {
    "counting_hub.py": ROOT / "e2e" / "service" / "counting_hub.py",
    "runtime/hub/fake_hub.py": ROOT / "tests" / "runtime" / "hub" / "fake_hub.py",
    "loopback_server.py": ROOT / "tests" / "loopback_server.py",
}
"""The files of the pod, by their paths in it."""


@pytest.fixture
def storage_class(restricted: Namespace) -> Iterator[str]:
    with roots_volume(restricted, has_class=True) as volume:
        yield volume.name


@pytest.fixture
def hub(restricted: Namespace) -> str:
    data = {path.name: path.read_text() for path in SCRIPTS.values()}
    restricted.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hub"}, "data": data})
    items = [{"key": path.name, "path": place} for place, path in SCRIPTS.items()]
    pod = idle_pod("hub", image_of_frontends(restricted.cluster))
    pod["metadata"]["labels"] = {"app": "hub"}
    (container,) = pod["spec"]["containers"]
    container["command"] = ["python", "/hub/counting_hub.py"]
    container["volumeMounts"].append({"name": "hub", "mountPath": "/hub"})
    pod["spec"]["volumes"].append({"name": "hub", "configMap": {"name": "hub", "items": items}})
    restricted.apply(pod)
    spec = {"selector": {"app": "hub"}, "ports": [{"port": 8000}]}
    restricted.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hub"}, "spec": spec})
    restricted.wait("pod/hub", "condition=Ready")
    return "http://hub:8000"


def sent(namespace: Namespace) -> dict[str, int]:
    """Return the bytes of each file that the hub has sent."""
    read = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:8001').read().decode())"
    counts: dict[str, int] = json.loads(namespace.kubectl("exec", "hub", "--", "python", "-c", read))
    return counts


def test_every_file_is_fetched_once_for_all_pods(restricted: Namespace, hub: str, storage_class: str) -> None:
    cache = {"size": "1Gi", "storageClassName": storage_class, "accessModes": ["ReadWriteOnce"]}
    engine = {
        "resourceName": "",
        "kvCache": {"memory": "64Mi"},
        "pod": {"env": [{"name": "HF_ENDPOINT", "value": hub}]},
    }
    restricted.apply(
        {
            "apiVersion": "serving.kvasir.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo"},
            "spec": {"model": {"source": "hf://org/demo", "cache": cache}, "engine": engine},
        }
    )
    restricted.wait_for_ranks("demo", 1)
    files = sent(restricted)
    assert files["model.safetensors"] > 3_000_000
    conditions = restricted.get("kvs/demo")["status"]["conditions"]
    assert [entry["status"] for entry in conditions if entry["type"] == "ModelCached"] == ["True"]
    restricted.kubectl("scale", "kvs/demo", "--replicas=2")
    restricted.wait_for_ranks("demo", 2)
    restricted.kubectl("delete", "pods", "--selector=app.kubernetes.io/instance=demo")
    restricted.wait_for_ranks("demo", 2)
    assert sent(restricted) == files
    restricted.until("pods", lambda pods: any(is_ready(pod) for name, pod in pods.items() if "frontend" in name))
    with restricted.forwarded("service/demo", 80) as url:
        assert ask(url)
