"""No request fails or gets another answer while a service is changed, scaled or drained, and while pods are killed.

The demo service has two ranks, or one rank, which is the default. Both have one frontend.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest
import yaml

from e2e.in_cluster import Namespace, Object, is_ready, restricted_namespace
from e2e.installed import DEMO, schedulable
from e2e.kind.cluster import Cluster
from e2e.load.mutable_fields import KEY, PRIORITY, changes
from e2e.load.under_load import load

SETTLED_WITHIN = 240
KILLS = 5
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
metadata: {{name: admin-keys}}
stringData: {{admin: admin-{KEY}}}
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
"""The objects to which the changed fields refer."""


@dataclass(frozen=True)
class Served:
    """The demo service with this number of ranks, and one frontend."""

    namespace: Namespace
    ranks: int


@pytest.fixture(scope="module")
def two_ranks(installed: Cluster, classes: None) -> Iterator[Served]:
    with served(installed, 2) as found:
        yield found


@pytest.fixture(scope="module")
def one_rank(installed: Cluster, classes: None) -> Iterator[Served]:
    with served(installed, 1) as found:
        yield found


@pytest.fixture(scope="module")
def classes(installed: Cluster) -> Iterator[None]:
    """The cluster-wide objects to which changed fields refer, while a service of these tests has pods."""
    installed.kubectl("apply", "--filename", "-", stdin=CLASSES)
    yield
    installed.kubectl("delete", "--filename", "-", stdin=CLASSES)


def test_drain_of_a_node_fails_no_request_of_one_rank(one_rank: Served) -> None:
    drain(one_rank)


def test_removal_of_a_node_by_an_autoscaler_fails_no_request(one_rank: Served) -> None:
    """Karpenter taints a node, and does not cordon it."""
    namespace, cluster = one_rank.namespace, one_rank.namespace.cluster
    if not cluster.can_load:
        pytest.skip("tests do not taint nodes of the cluster of KUBECONFIG")
    (leaving,) = nodes_of(one_rank)
    (other,) = {*schedulable(cluster)} - {leaving}
    taint = "karpenter.sh/disrupted:NoSchedule"
    cluster.kubectl("taint", "node", leaving, taint)
    try:
        with load(namespace, "demo", node=other):
            namespace.until("pods", lambda _: nodes_of(one_rank) == {other}, SETTLED_WITHIN)
            namespace.wait_for_ranks("demo", one_rank.ranks, SETTLED_WITHIN)
    finally:
        cluster.kubectl("taint", "node", leaving, f"{taint}-")


def test_scale_up_and_down_fails_no_request(one_rank: Served) -> None:
    namespace = one_rank.namespace
    with load(namespace, "demo"):
        for count in (3, 1):
            namespace.kubectl("scale", "kvs/demo", f"--replicas={count}")
            namespace.wait_for_ranks("demo", count, SETTLED_WITHIN)


def test_roll_out_of_the_only_frontend_fails_no_request(one_rank: Served) -> None:
    old = ready(pods(one_rank, "frontend"))
    with load(one_rank.namespace, "demo"):
        change(one_rank, {"spec": {"frontend": {"pod": {"annotations": {"example.com/note": "rolled"}}}}})
    assert not old.keys() & ready(pods(one_rank, "frontend")).keys()


def test_killed_pods_of_the_only_rank_fail_no_request(one_rank: Served) -> None:
    """Requests wait for the next pod."""
    kill(one_rank)


def test_change_of_each_field_fails_no_request_of_one_rank(one_rank: Served) -> None:
    change_each_field(one_rank)


def test_drain_of_a_node_fails_no_request_of_two_ranks(two_ranks: Served) -> None:
    drain(two_ranks)


def test_killed_pods_of_two_ranks_fail_no_request(two_ranks: Served) -> None:
    kill(two_ranks)


def test_chaos_run_loses_no_request(two_ranks: Served) -> None:
    namespace = two_ranks.namespace
    environment = {**os.environ, **namespace.cluster.environment()}
    with namespace.forwarded("service/demo", 80) as url:
        command = [sys.executable, "-m", "kvasir.cli.main", "chaos", url, "--kubernetes", f"{namespace.name}/demo"]
        options = ["--kills", "3", "--drains", "3", "--min-usable", "1", "--questions", "30", "--seed", "14"]
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    namespace.wait_for_ranks("demo", two_ranks.ranks, SETTLED_WITHIN)


def test_change_of_each_field_fails_no_request_of_two_ranks(two_ranks: Served) -> None:
    change_each_field(two_ranks)


@contextlib.contextmanager
def served(cluster: Cluster, ranks: int) -> Iterator[Served]:
    """Serve with all pods on the first node. A user's cluster is used as it is."""
    manifest = yaml.safe_load(DEMO.read_text())
    manifest["spec"]["engine"]["dataParallelSize"] = ranks
    others = schedulable(cluster)[1:] if cluster.can_load else []
    with restricted_namespace(cluster) as namespace:
        with cordoned(cluster, *others):
            namespace.apply(manifest)
            namespace.wait_for_ranks("demo", ranks)
        yield Served(namespace, ranks)


def drain(service: Served) -> None:
    """Drain the node on which all pods of the service run. This must be the first change of the service."""
    namespace, cluster = service.namespace, service.namespace.cluster
    if not cluster.can_load:
        pytest.skip("tests do not drain nodes of the cluster of KUBECONFIG")
    drained, other = schedulable(cluster)
    assert nodes_of(service) == {drained}
    with cordoned(cluster, drained):
        with load(namespace, "demo", node=other):
            # --force: clients of other services have no controller.
            options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={SETTLED_WITHIN}s")
            cluster.kubectl("drain", drained, *options)
            namespace.wait_for_ranks("demo", service.ranks, SETTLED_WITHIN)
        assert nodes_of(service) == {other}


def kill(service: Served) -> None:
    """Kill engines without grace, each when all ranks are ready again."""
    rng = random.Random(14)
    with load(service.namespace, "demo"):
        for _ in range(KILLS):
            victim, pod = rng.choice(list(ready(pods(service, "engine")).items()))
            service.namespace.kubectl("delete", "pod", victim, "--force", "--grace-period=0")
            service.namespace.until("pods", replaced(victim, pod["metadata"]["uid"]), SETTLED_WITHIN)
            service.namespace.wait_for_ranks("demo", service.ranks, SETTLED_WITHIN)


def replaced(name: str, uid: str) -> Callable[[Mapping[str, Object]], bool]:
    """Return a condition: there is a ready pod of this name other than the one with this uid."""
    return lambda seen: name in seen and seen[name]["metadata"]["uid"] != uid and is_ready(seen[name])


def change_each_field(service: Served) -> None:
    service.namespace.apply(NEEDED)
    with load(service.namespace, "demo"):
        for patch in changes():
            change(service, patch)


def change(service: Served, patch: Object) -> None:
    """Patch the service and wait until the change is in force."""
    service.namespace.kubectl("patch", "kvs/demo", "--type=merge", "--patch", json.dumps(patch))
    service.namespace.wait_for_ranks("demo", service.ranks, SETTLED_WITHIN)


def pods(service: Served, component: str) -> dict[str, Object]:
    """Return the component's pods, by name."""
    selector = f"app.kubernetes.io/instance=demo,app.kubernetes.io/component={component}"
    return {pod["metadata"]["name"]: pod for pod in service.namespace.get("pods", "--selector", selector)["items"]}


def ready(found: Mapping[str, Object]) -> dict[str, Object]:
    return {name: pod for name, pod in found.items() if is_ready(pod)}


def nodes_of(service: Served) -> set[str]:
    """Return the nodes of its ready pods."""
    found = ready({**pods(service, "engine"), **pods(service, "frontend")})
    return {pod["spec"]["nodeName"] for pod in found.values()}


@contextlib.contextmanager
def cordoned(cluster: Cluster, *nodes: str) -> Iterator[None]:
    with contextlib.ExitStack() as cleanup:
        for node in nodes:
            cleanup.callback(cluster.kubectl, "uncordon", node)
            cluster.kubectl("cordon", node)
        yield
