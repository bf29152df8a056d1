"""The properties of the cluster on which every other end-to-end test relies."""

import hashlib
import io
import json
import tarfile
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.in_cluster import Namespace
from e2e.kind.cluster import Cluster
from e2e.kind.kind_cluster import KindCluster

SHELL = "localhost/kvasir-kind/tools:local"
"""An image with a shell and a web server. Our own nodes contain it; other clusters pull one."""
PULLED = "docker.io/library/busybox:1.36"
CTR = ("ctr", "--namespace", "k8s.io")
WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: web}}
      containers:
      - name: web
        image: IMAGE
        command:
        - sh
        - -c
        - mkdir /tmp/www; hostname > /tmp/www/index.html; echo serving; exec httpd -f -p 8080 -h /tmp/www
        readinessProbe: {httpGet: {port: 8080, path: /}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - name: writer
    image: IMAGE
    command: [sh, -c, "echo kept > /data/file && cat /data/file"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    own = isinstance(cluster, KindCluster) and SHELL in cluster.docker(
        "exec", f"{cluster.nodes()[-1]}", *CTR, "images", "ls"
    )
    return SHELL if own else PULLED


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"kind-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def web(cluster: Cluster, namespace: str, image: str) -> str:
    """A namespace with two web servers on different nodes, behind one Service."""
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=WEB.replace("IMAGE", image))
    cluster.kubectl("rollout", "status", "-n", namespace, "deployment/web", "--timeout=60s")
    return namespace


def test_all_three_nodes_are_ready(cluster: Cluster) -> None:
    path = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
    assert cluster.kubectl("get", "nodes", "-o", f"jsonpath={path}").split() == ["True"] * 3


def test_a_service_answers_by_its_name_from_both_of_its_pods(cluster: Cluster, web: str) -> None:
    pods = set(cluster.kubectl("get", "pods", "-n", web, "-o", "name").split())
    # A node receives a new endpoint with a delay: request until both servers have responded.
    loop = "for i in $(seq 500); do wget -qO- http://web/ | tee -a /tmp/replies; "
    loop += "[ $(sort -u /tmp/replies | wc -l) = 2 ] && break; done"
    answers = cluster.kubectl("exec", "-n", web, "deploy/web", "--", "sh", "-c", loop).split()
    assert {f"pod/{name}" for name in answers} == pods


def test_logs_and_port_forward_work_from_this_machine(cluster: Cluster, web: str) -> None:
    pod = cluster.kubectl("get", "pods", "-n", web, "-o", "name").split()[0]
    assert cluster.kubectl("logs", "-n", web, pod) == "serving\n"
    with Namespace(cluster, web).forwarded(pod, 8080) as url, urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read().decode().strip() == pod.removeprefix("pod/")


def test_a_claim_is_bound_to_a_volume_that_keeps_its_data(cluster: Cluster, namespace: str, image: str) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=CLAIM.replace("IMAGE", image))
    done = "jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", "-n", namespace, "pod/writer", f"--for={done}", "--timeout=60s")
    assert cluster.kubectl("logs", "-n", namespace, "writer") == "kept\n"


def test_an_image_is_loaded_without_the_layers_of_the_nodes(
    cluster: Cluster, namespace: str, image: str, tmp_path: Path
) -> None:
    if not isinstance(cluster, KindCluster) or image != SHELL:
        pytest.skip("only our own node image accepts archives without known layers")
    archive = on_top_of(cluster, image, {"greeting": b"hello\n"}, tmp_path / "app.tar")
    name = cluster.load_image(archive, nodes=cluster.nodes()[1:])
    run = ("run", "app", "-n", namespace, "--restart=Never", "--image-pull-policy=Never", f"--image={name}")
    cluster.kubectl(*run, "--command", "--", "cat", "/greeting")
    cluster.kubectl("wait", "-n", namespace, "pod/app", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    assert cluster.kubectl("logs", "-n", namespace, "app") == "hello\n"


def on_top_of(cluster: KindCluster, base: str, files: dict[str, bytes], archive: Path) -> Path:
    """Write an image archive with one more layer on `base`.

    The layers of the base are empty members, so reading them fails.
    """
    node = cluster.nodes()[-1]
    listed = cluster.docker("exec", node, *CTR, "images", "ls", f"name=={base}").splitlines()[1].split()
    manifest = json.loads(cluster.docker("exec", node, *CTR, "content", "get", listed[2]))
    config = json.loads(cluster.docker("exec", node, *CTR, "content", "get", manifest["config"]["digest"]))
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for name, content in files.items():
            add(tar, name, content)
    layers = [f"base-{number}.tar" for number, _ in enumerate(config["rootfs"]["diff_ids"])]
    config["rootfs"]["diff_ids"].append("sha256:" + hashlib.sha256(layer.read_bytes()).hexdigest())
    with tarfile.open(archive, "w") as tar:
        for name in layers:
            add(tar, name, b"")
        add(tar, "top.tar", layer.read_bytes())
        add(tar, "config.json", json.dumps(config).encode())
        entry = {"Config": "config.json", "RepoTags": ["app:thin"], "Layers": [*layers, "top.tar"]}
        add(tar, "manifest.json", json.dumps([entry]).encode())
    return archive


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    tar.addfile(member, io.BytesIO(content))
