"""Failures in a cluster: within a minute the status reports the cause, and the remaining parts keep serving.

The demo service, with one rank per worker, must survive all of these tests. The leading operator is killed during
its roll-out. Then one of the two nodes is stopped, and while Kubernetes has not noticed it yet, other services fail
in other ways.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from e2e.in_cluster import Namespace, Object, idle_pod, is_ready, restricted_namespace
from e2e.installed import DEMO, NAMESPACE, OPERATOR, image_of_frontends, schedulable
from e2e.kind.cluster import Cluster
from e2e.kind.progress import KindError
from e2e.operator.harness.refusals import REFUSALS
from e2e.operator.harness.schema_rules import Spec, merged
from e2e.service.ask import ask

MINUTE = 60.0
LEADER = "jsonpath={.spec.holderIdentity}"
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
}
GPU = "example.com/gpu"
SMALL: Spec = {"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}
"""A GPU engine requests more than these nodes have."""


@pytest.fixture(scope="module")
def spread(installed: Cluster) -> Iterator[Namespace]:
    """The namespace in which the demo service serves, with its two ranks on different workers."""
    manifest = yaml.safe_load(DEMO.read_text())
    manifest["spec"]["engine"]["pod"] = {"topologySpreadConstraints": [SPREAD]}
    with restricted_namespace(installed) as namespace:
        namespace.apply(manifest)
        namespace.wait_for_ranks("demo", 2)
        yield namespace


class Outage:
    """A worker without power, until `end`. `named` is the time in seconds until the status reported its rank."""

    def __init__(self, service: Namespace, rank: int, node: str, background: ThreadPoolExecutor) -> None:
        self._service = service
        self.rank = rank
        self.node = node
        self._cluster = service.cluster
        self._cluster.kubectl("cordon", node)  # otherwise Kubernetes would still assign new pods to the node
        self._cluster.stop_node(node)
        self.named: Future[float] = background.submit(self._until_named, time.monotonic())

    def end(self) -> None:
        self._cluster.start_node(self.node)
        self._cluster.kubectl("wait", f"node/{self.node}", "--for=condition=Ready", "--timeout=90s")
        self._cluster.kubectl("uncordon", self.node)

    def _until_named(self, began: float) -> float:
        def named(seen: Mapping[str, Object]) -> bool:
            status = seen["demo"]["status"]
            lost = f"node {self.node} does not respond" in status["engines"]["ranks"][self.rank].get("message", "")
            return lost and ready_condition(seen["demo"])["reason"] == "NodeLost"

        self._service.until("kvs/demo", named, 2 * int(MINUTE))
        return time.monotonic() - began


@pytest.fixture(scope="module")
def outage(spread: Namespace) -> Iterator[Outage]:
    """An outage of the node without the demo service's frontend."""
    if not spread.cluster.can_load:
        pytest.skip("tests do not stop nodes of the cluster of KUBECONFIG")
    nodes = {name: pod["spec"]["nodeName"] for name, pod in pods(spread, "engine").items()}
    (frontend,) = pods(spread, "frontend").values()
    (rank,) = (rank for rank in (0, 1) if nodes[f"demo-engine-{rank}"] != frontend["spec"]["nodeName"])
    with ThreadPoolExecutor(1) as background:
        running = Outage(spread, rank, nodes[f"demo-engine-{rank}"], background)
        yield running
        running.end()


def test_another_operator_completes_a_killed_leaders_roll_out(spread: Namespace, system: Namespace) -> None:
    leader = system.kubectl("get", "lease/kvasir-operator", "--output", LEADER)
    old = pods(spread, "engine")
    latest, at_once = dict(old), []

    def missing(seen: Mapping[str, Object]) -> list[str]:
        latest.update({name: pod for name, pod in seen.items() if name in old})
        return [name for name, pod in latest.items() if not is_ready(pod)]

    def renewed(seen: Mapping[str, Object]) -> bool:
        at_once.append(len(missing(seen)))
        return not at_once[-1] and all(uid_of(latest[name]) != uid_of(pod) for name, pod in old.items())

    spread.kubectl("patch", "kvs/demo", "--type=merge", "--patch", '{"spec": {"engine": {"maxModelLen": 512}}}')
    spread.until("pods", lambda seen: bool(missing(seen)))
    system.kubectl("delete", f"pod/{leader}", "--grace-period=0", "--force")
    spread.until("pods", renewed, 120)
    assert max(at_once) == 1
    spread.wait_for_ranks("demo", 2)
    assert system.kubectl("get", "lease/kvasir-operator", "--output", LEADER) != leader


def test_requests_succeed_before_a_lost_node_is_noticed(outage: Outage, spread: Namespace, expected: str) -> None:
    with spread.forwarded("service/demo", 80) as url:
        assert [ask(url) for _ in range(4)] == [expected] * 4


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        pytest.param(
            {"image": "localhost:1/kvasir-engine:none"},
            "ImagePullFailed",
            "localhost:1/kvasir-engine:none cannot be pulled",
            id="an image that does not exist",
        ),
        pytest.param(
            {"model": {"source": "file:///models/none"}},
            "ModelNotFound",
            "/models/none",
            id="a model that does not exist",
        ),
        pytest.param(
            {"engine": {"resourceName": "nvidia.com/gpu"}},
            "InsufficientGPU",
            "no node has a free nvidia.com/gpu",
            id="a GPU where there is none",
        ),
    ],
)
def test_within_a_minute_the_status_names(restricted: Namespace, change: Spec, reason: str, words: str) -> None:
    restricted.apply(service(**change))
    restricted.wait("kvs/wrong", f'jsonpath={{.status.conditions[?(@.type=="Ready")].reason}}={reason}')
    ready = ready_condition(restricted.get("kvs/wrong"))
    assert ready["status"] == "False"
    assert words in ready["message"]


def test_ranks_without_a_free_gpu_are_named_and_the_others_start(
    restricted: Namespace,
) -> None:
    """One node has four GPUs, and another pod uses two of them."""
    with gpus(restricted.cluster, 4):
        restricted.apply(idle_pod("taken", image_of_frontends(restricted.cluster), {GPU: "2"}))
        restricted.wait("pod/taken", "condition=PodScheduled")
        restricted.apply(service(engine={"dataParallelSize": 4, "resourceName": GPU, "pod": SMALL}))

        def named(seen: Mapping[str, Object]) -> bool:
            ranks = seen["wrong"].get("status", {}).get("engines", {}).get("ranks", ())
            waiting = [f"no node has a free {GPU}" in rank.get("message", "") for rank in ranks]
            started = [rank["phase"] not in ("Scheduling", "Pulling") for rank in ranks]
            return (sum(waiting), sum(started)) == (2, 2)

        restricted.until("kvs/wrong", named)


def test_a_taint_is_named_before_the_missing_gpu(restricted: Namespace) -> None:
    """The scheduler also reports that the other nodes have no GPU."""
    with gpus(restricted.cluster, 1) as node, tainted(restricted.cluster, node, "example.com/pool=gpu:NoSchedule"):
        engine = {"resourceName": GPU, "pod": SMALL}
        restricted.apply(service(engine=engine))
        restricted.wait("kvs/wrong", 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Unschedulable')
        message = ready_condition(restricted.get("kvs/wrong"))["message"]
        assert "example.com/pool" in message
        assert "engine.pod.tolerations" in message
        tolerant = {"key": "example.com/pool", "operator": "Exists"}
        restricted.apply(service(engine={**engine, "pod": {**SMALL, "tolerations": [tolerant]}}))

        def placed(seen: Mapping[str, Object]) -> bool:
            return any(name.startswith("wrong-engine") and "nodeName" in pod["spec"] for name, pod in seen.items())

        restricted.until("pods", placed, 120)


def test_an_injected_container_that_crashes_is_named(restricted: Namespace) -> None:
    """Another client adds it to the template, as a webhook adds it to pods."""
    restricted.apply(service())
    restricted.until("statefulsets", lambda seen: "wrong-engine" in seen)
    setup = idle_pod("setup", image_of_frontends(restricted.cluster))["spec"]["containers"][0]
    setup |= {"command": ["sh", "-c", "echo no route; exit 3"], "volumeMounts": []}
    setup["terminationMessagePolicy"] = "FallbackToLogsOnError"
    patch = {"spec": {"template": {"spec": {"initContainers": [setup]}}}}
    restricted.kubectl("patch", "statefulset/wrong-engine", "--type=strategic", "--patch", json.dumps(patch))

    def named(seen: Mapping[str, Object]) -> bool:
        message = ready_condition(seen["wrong"])["message"]
        return "container setup, which was added to the pod, ended with exit code 3 (no route)" in message

    restricted.until("kvs/wrong", named)


def test_engines_are_placed_on_nodes_that_are_reserved_for_gpus(restricted: Namespace) -> None:
    with gpus(restricted.cluster, 1) as node, tainted(restricted.cluster, node, f"{GPU}=present:NoSchedule"):
        restricted.apply(service(engine={"resourceName": GPU, "pod": SMALL}))
        restricted.until("pods", lambda seen: "wrong-engine-0" in seen)
        restricted.wait("pod/wrong-engine-0", "condition=PodScheduled")
        pod = restricted.get("pod/wrong-engine-0")
    assert (pod["spec"]["nodeName"], pod["status"]["qosClass"]) == (node, "Burstable")


def test_a_foreign_object_with_a_childs_name_is_left_alone(restricted: Namespace) -> None:
    restricted.kubectl("create", "service", "externalname", "wrong", "--external-name=example.org")
    before = restricted.get("service/wrong")
    restricted.apply(service())
    restricted.wait("kvs/wrong", 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=NameTaken')
    ready = ready_condition(restricted.get("kvs/wrong"))
    assert ready["status"] == "False"
    assert "Service wrong already exists and is not owned by this InferenceService" in ready["message"]
    assert "StatefulSet/wrong-engine" in restricted.children("wrong")  # the other children are applied
    assert restricted.get("service/wrong") == before


def test_kubectl_rejects_a_broken_rule_with_its_message(restricted: Namespace) -> None:
    for case in REFUSALS:
        if case.before:
            restricted.apply(bare(case.name, case.before))
        with pytest.raises(KindError) as refusal:
            restricted.apply(bare(case.name, case.change))
        assert f"{case.path}: Invalid value" in str(refusal.value)
        assert case.words in str(refusal.value)
    there = {case.name for case in REFUSALS if case.before}
    assert {item["metadata"]["name"] for item in restricted.get("kvs")["items"]} == there


def test_the_rank_of_a_lost_node_is_named_and_replaced(outage: Outage, spread: Namespace, expected: str) -> None:
    assert outage.named.result() <= MINUTE
    status = spread.get("kvs/demo")["status"]
    assert (ready_condition({"status": status})["status"], status["engines"]["summary"]) == ("True", "1/2")
    assert status["engines"]["ranks"][1 - outage.rank]["phase"] == "Ready"
    with spread.forwarded("service/demo", 80) as url:
        assert ask(url) == expected
        outage.end()
        spread.wait_for_ranks("demo", 2)
        assert ask(url) == expected
    spread.cluster.kubectl("rollout", "status", OPERATOR, "--namespace", NAMESPACE, "--timeout=60s")


def service(**spec: Any) -> Object:
    """Return a service of one rank on a CPU, with these fields."""
    return bare("wrong", merged({"engine": {"resourceName": "", "kvCache": {"memory": "64Mi"}}}, spec))


def bare(name: str, spec: Spec) -> Object:
    """Return a service of the demo model without other fields."""
    return {
        "apiVersion": "serving.kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": merged({"model": {"source": "demo://"}}, spec),
    }


@contextlib.contextmanager
def gpus(cluster: Cluster, count: int) -> Iterator[str]:
    """Set this capacity on one schedulable node. Yield its name."""
    listed = json.loads(cluster.kubectl("get", "nodes", "--output", "json"))["items"]
    free = {node["metadata"]["name"] for node in listed if not node["spec"].get("unschedulable")}
    node = next(name for name in schedulable(cluster) if name in free)
    patch = ("patch", "node", node, "--subresource=status", "--type=merge", "--patch")
    cluster.kubectl(
        *patch, json.dumps({"status": {"capacity": {GPU: str(count)}, "allocatable": {GPU: str(count)}}})
    )
    try:
        yield node
    finally:
        cluster.kubectl(*patch, json.dumps({"status": {"capacity": {GPU: None}, "allocatable": {GPU: None}}}))


@contextlib.contextmanager
def tainted(cluster: Cluster, node: str, taint: str) -> Iterator[None]:
    cluster.kubectl("taint", "node", node, taint)
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", node, f"{taint}-")


def ready_condition(resource: Object) -> Object:
    found: Object = next(entry for entry in resource["status"]["conditions"] if entry["type"] == "Ready")
    return found


def pods(namespace: Namespace, component: str) -> dict[str, Object]:
    """Return the component's pods of the demo service, by name."""
    selector = f"app.kubernetes.io/instance=demo,app.kubernetes.io/component={component}"
    return {pod["metadata"]["name"]: pod for pod in namespace.get("pods", "--selector", selector)["items"]}


def uid_of(pod: Object) -> str:
    return str(pod["metadata"]["uid"])
