"""Changes of a service while requests come in: not one of them fails.

Each is made to the demo service with two ranks and to one as the CRD's defaults have it, one rank and one frontend.
Streams that outlive a drain, and pods that are killed, are another matter.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping

import pytest
import yaml

from e2e.in_cluster import Namespace, Object, is_ready
from e2e.installed import DEMO, schedulable
from e2e.kind.cluster import Cluster
from e2e.mutable_fields import KEY, PRIORITY, changes
from e2e.under_load import load

SETTLED_WITHIN = 240
CLASSES = f"""
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {PRIORITY}}}
value: 1
preemptionPolicy: Never
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {{name: {PRIORITY}}}
handler: runc
"""
NEEDED = f"""
apiVersion: v1
kind: Secret
metadata: {{name: keys}}
stringData: {{load: {KEY}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: token}}
stringData: {{token: none, key: none}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings}}
data: {{COLOUR: red}}
"""
"""What the changed fields name."""


@pytest.fixture(params=[pytest.param(2, id="two ranks"), pytest.param(1, id="one rank")])
def ranks(request: pytest.FixtureRequest) -> int:
    """Of a service that has one frontend."""
    count: int = request.param
    return count


@pytest.fixture
def classes(installed: Cluster) -> Iterator[None]:
    """The objects of the whole cluster that changed fields name."""
    installed.kubectl("apply", "--filename", "-", stdin=CLASSES)
    yield
    installed.kubectl("delete", "--filename", "-", stdin=CLASSES)


def test_scale_up_and_down_fails_no_request(restricted: Namespace) -> None:
    serve(restricted, 1)
    with load(restricted, "demo"):
        for count in (3, 1):
            restricted.kubectl("scale", "kvs/demo", f"--replicas={count}")
            restricted.wait_for_ranks("demo", count, SETTLED_WITHIN)


def test_roll_out_of_the_only_frontend_fails_no_request(restricted: Namespace) -> None:
    serve(restricted, 1)
    old = pods(restricted, "frontend")
    with load(restricted, "demo"):
        note = {"spec": {"frontend": {"pod": {"annotations": {"example.com/note": "changed"}}}}}
        restricted.kubectl("patch", "kvs/demo", "--type=merge", "--patch", json.dumps(note))
        restricted.wait_for_ranks("demo", 1, SETTLED_WITHIN)
    assert not old.keys() & ready(pods(restricted, "frontend")).keys()


def test_change_of_every_mutable_field_fails_no_request(ranks: int, restricted: Namespace, classes: None) -> None:
    serve(restricted, ranks)
    restricted.apply(NEEDED)
    with load(restricted, "demo"):
        for patch in changes():
            restricted.kubectl("patch", "kvs/demo", "--type=merge", "--patch", json.dumps(patch))
            restricted.wait_for_ranks("demo", ranks, SETTLED_WITHIN)


def test_drain_of_a_node_fails_no_request(ranks: int, restricted: Namespace) -> None:
    """All pods of the service are on the node that is drained."""
    cluster = restricted.cluster
    if not cluster.can_load:
        pytest.skip("nodes of a cluster that was given are not drained")
    drained, other = schedulable(cluster)[:2]
    with cordoned(cluster, other):
        serve(restricted, ranks)
    old = {**pods(restricted, "engine"), **pods(restricted, "frontend")}
    assert {pod["spec"]["nodeName"] for pod in old.values()} == {drained}
    with cordoned(cluster, drained):
        with load(restricted, "demo", node=other):
            options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={SETTLED_WITHIN}s")
            cluster.kubectl("drain", drained, *options)
            restricted.wait_for_ranks("demo", ranks, SETTLED_WITHIN)
        moved = {**pods(restricted, "engine"), **pods(restricted, "frontend")}
        assert {pod["spec"]["nodeName"] for pod in ready(moved).values()} == {other}


def serve(namespace: Namespace, ranks: int) -> None:
    """The demo service, with this many ranks."""
    manifest = yaml.safe_load(DEMO.read_text())
    manifest["spec"]["engine"]["dataParallelSize"] = ranks
    namespace.apply(manifest)
    namespace.wait_for_ranks("demo", ranks)


def pods(namespace: Namespace, component: str) -> dict[str, Object]:
    """Of the demo service, by name."""
    selector = f"app.kubernetes.io/instance=demo,app.kubernetes.io/component={component}"
    return {pod["metadata"]["name"]: pod for pod in namespace.get("pods", "--selector", selector)["items"]}


def ready(found: Mapping[str, Object]) -> dict[str, Object]:
    return {name: pod for name, pod in found.items() if is_ready(pod)}


@contextlib.contextmanager
def cordoned(cluster: Cluster, node: str) -> Iterator[None]:
    cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)
