"""What the status says, from pods whose status the test writes in a kubelet's place.

The tables of all cases are in tests/operator/test_pods.py; here the way through the API server is tested: schema,
subresource, columns.
"""

from pathlib import Path

import yaml

from e2e.kind.apiserver import apiserver
from e2e.operator.world import CRD, World, install, ready, scheduled
from kvasir_operator.cluster import Cluster
from kvasir_operator.kinds import DEPLOYMENT, NODE, POD, Kind


async def test_a_service_gets_ready(world: World) -> None:
    await world.create(engine={"dataParallelSize": 2})
    await world.reconcile()
    await world.settled(ranks=2)
    await world.make_ready("engine")
    await world.reconcile()
    assert (await world.condition("EnginesReady"))["status"] == "True"
    assert (await world.condition("Ready"))["status"] == "False"
    await world.eventually(lambda: world.pods("frontend"))
    await world.make_ready("frontend")
    await world.eventually(lambda: deployment_is_ready(world))
    assert await world.reconcile() is None
    status = (await world.service())["status"]
    assert status["engines"]["summary"] == "2/2"
    assert [rank["phase"] for rank in status["engines"]["ranks"]] == ["Ready", "Ready"]
    assert status["frontends"] == {"desired": 1, "ready": 1}
    assert status["url"] == f"http://demo.{world.namespace}.svc/v1"
    assert status["model"] == "demo"
    found = {entry["type"]: (entry["status"], entry["reason"]) for entry in status["conditions"]}
    assert found == {
        "Ready": ("True", "AsDesired"),
        "EnginesReady": ("True", "AsDesired"),
        "FrontendsReady": ("True", "AsDesired"),
        "Progressing": ("False", "AsDesired"),
        "Degraded": ("False", "AsDesired"),
    }
    assert {entry["observedGeneration"] for entry in status["conditions"]} == {status["observedGeneration"]}


async def test_fewer_engines_than_desired_are_degraded(world: World) -> None:
    await world.create(engine={"dataParallelSize": 2})
    await world.reconcile()
    await world.settled(ranks=2)
    first, second = await world.pods("engine")
    await world.set_pod(first, ready("engine"))
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    await world.set_pod(second, scheduled("engine", waiting))
    await world.eventually(lambda: world.pods("frontend"))
    await world.make_ready("frontend")
    await world.reconcile()
    ready_, degraded = await world.condition("Ready"), await world.condition("Degraded")
    assert (ready_["status"], ready_["reason"]) == ("True", "ImagePullFailed")
    assert (degraded["status"], degraded["reason"]) == ("True", "ImagePullFailed")
    assert "pod demo-engine-1: image kvasir-engine:test cannot be pulled" in degraded["message"]


async def test_a_model_that_is_not_found_is_named(world: World) -> None:
    await world.create()
    await world.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    log = (
        "2026-11-21T07:00:00.000Z ERROR   engine-0 model not found: hf://no/such was not found without a token\n"
        "2026-11-21T07:00:00.000Z INFO    engine-0 ended after 0.4 s with exit code 2\n"
    )
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": log}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    await world.set_pod(pod, scheduled("engine", waiting, lastState=ended, restartCount=2))
    await world.reconcile()
    found = await world.condition("Ready")
    assert found["reason"] == "ModelNotFound"
    assert "hf://no/such was not found without a token" in found["message"]
    (rank,) = (await world.service())["status"]["engines"]["ranks"]
    assert rank["phase"] == "Failed"


async def test_too_few_gpus_are_named(world: World) -> None:
    await world.create(engine={"resourceName": "nvidia.com/gpu"})
    await world.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    await world.set_pod(pod, {"phase": "Pending", "conditions": [unschedulable]})
    await world.reconcile()
    found = await world.condition("Ready")
    assert found["reason"] == "InsufficientGPU"
    assert message in found["message"]


async def test_ranks_that_a_quota_forbids_are_named_until_it_lets_them_be(world: World) -> None:
    quota = Kind("v1", "ResourceQuota", "resourcequotas")
    metadata = {"name": "none", "namespace": world.namespace}
    facts = {"spec": {"hard": {"pods": "0"}}, "status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, **facts}
    await world.cluster.apply(quota, body, force=True)
    made = await world.cluster.apply(quota, body, force=True, subresource="status")  # as its controller does

    async def forbidden() -> bool:
        await world.reconcile()
        return bool((await world.condition("EnginesReady"))["reason"] == "Unschedulable")

    await world.create()
    await world.eventually(forbidden)
    message = (await world.condition("EnginesReady"))["message"]
    assert "pod demo-engine-0: it cannot be made" in message
    assert "is forbidden: " in message
    assert (await world.service())["status"]["replicas"] == 0
    assert await world.reconcile() is not None  # no watch tells of Events: it looks again

    await world.cluster.delete(quota, made)
    await world.settled()
    await world.reconcile()
    assert (await world.condition("EnginesReady"))["reason"] == "Loading"


async def test_a_spec_that_an_older_schema_let_through_is_told_to_be_invalid(tmp_path: Path) -> None:
    crd = yaml.safe_load(CRD.read_text())
    (version,) = crd["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["engine"]["properties"]["kvCache"]["properties"]["memory"]["minimum"]
    old = tmp_path / "crd.yaml"
    old.write_text(yaml.safe_dump(crd))
    with apiserver() as server:
        await install(server, old)
        cluster = await Cluster.connect(str(server.kubeconfig))
        world = World(cluster, "default", server.kubeconfig)
        await world.create(engine={"kvCache": {"memory": -1}})
        assert await world.reconcile() is None
        found = await world.condition("Ready")
        assert (found["status"], found["reason"]) == ("False", "InvalidSpec")
        assert "spec.engine.kvCache.memory: -1 is not a size" in found["message"]
        await cluster.close()


async def test_an_unchanged_status_is_not_written(world: World) -> None:
    await world.create()
    await world.reconcile()
    await world.settled()
    await world.reconcile()
    before = (await world.service())["metadata"]["resourceVersion"]
    await world.reconcile()
    assert (await world.service())["metadata"]["resourceVersion"] == before


async def test_the_engines_of_a_lost_node_are_named_and_released(world: World) -> None:
    """A pod that is bound is never gone before its kubelet says so, or somebody forces it."""
    node = f"node-{world.namespace}"
    metadata = {"name": node, "namespace": ""}
    await world.cluster.create(NODE, "", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"conditions": [unknown]}}
    await world.cluster.apply(NODE, body, force=True, subresource="status")

    await world.create()
    await world.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    await world.bind(pod, node)
    await world.set_pod(pod, scheduled("engine", {"running": {}}))
    await world.reconcile()
    found = await world.condition("Ready")
    assert found["reason"] == "NodeLost"
    assert f"node {node} is not ready" in found["message"]

    await world.cluster.delete(POD, pod)  # as the taint manager does, after the toleration
    (leaving,) = await world.pods("engine")
    assert leaving["metadata"]["deletionTimestamp"]
    await world.reconcile()

    async def successor() -> bool:
        pods = await world.pods("engine")
        return [new["metadata"]["uid"] for new in pods] not in ([], [pod["metadata"]["uid"]])

    await world.eventually(successor)


async def test_a_pod_that_drains_on_a_node_that_lives_is_left_alone(world: World) -> None:
    node = f"node-{world.namespace}"
    await world.cluster.create(
        NODE, "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "namespace": ""}}
    )
    await world.create()
    await world.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    await world.bind(pod, node)
    await world.cluster.delete(POD, pod)
    await world.reconcile()
    (leaving,) = await world.pods("engine")
    assert leaving["metadata"]["uid"] == pod["metadata"]["uid"]
    assert (await world.service())["status"]["engines"]["ranks"][0]["phase"] == "Draining"
    await world.cluster.delete(POD, pod, grace=0)


async def deployment_is_ready(world: World) -> bool:
    """Its controller has seen that the pods are."""
    found = await world.must_get(DEPLOYMENT, "demo-frontend")
    return bool(found["status"].get("readyReplicas") == found["spec"]["replicas"])
