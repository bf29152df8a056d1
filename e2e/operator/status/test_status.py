"""The status for pods whose status the test writes like a kubelet.

tests/operator/observe/test_pod_state.py has the tables of all cases. These tests cover the way through the API
server: schema, subresource and columns.
"""

from pathlib import Path

import yaml

from e2e.kind.apiserver import apiserver
from e2e.operator.harness.cluster_faults import QUOTA, node, set_node, set_quota
from e2e.operator.harness.in_process import STATUS_PAUSE
from e2e.operator.harness.pod_status import ready, scheduled
from e2e.operator.harness.world import CRD, World, install
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.cluster_client import Cluster
from kvasir_operator.cluster.kinds import DEPLOYMENT, POD


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
    assert status["frontends"] == {"desired": 1, "ready": 1, "restarts": 0}
    assert status["url"] == f"http://demo.{world.namespace}.svc/v1"
    assert status["model"] == "demo"
    found = {entry["type"]: (entry["status"], entry["reason"]) for entry in status["conditions"]}
    assert found == {
        "Ready": ("True", "AsDesired"),
        "EnginesReady": ("True", "AsDesired"),
        "FrontendsReady": ("True", "AsDesired"),
        "Progressing": ("False", "AsDesired"),
        "Degraded": ("False", "AsDesired"),
        "UpgradeAvailable": ("False", "AsDesired"),
        "Reconciling": ("False", "AsDesired"),
        "Stalled": ("False", "AsDesired"),
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
    failure = Failure(Reason.MODEL_NOT_FOUND, "hf://no/such was not found without a token")
    log = f"2026-11-21T07:00:00.000Z INFO    engine-0 ended after 0.4 s\n{failure.to_json()}\n"
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


async def test_ranks_that_a_quota_forbids_are_named_until_it_ends(world: World) -> None:
    quota = await set_quota(world, pods=0)
    async with world.in_process() as operator:
        await world.create()

        async def forbidden() -> bool:
            return bool((await world.condition("EnginesReady"))["reason"] == "Unschedulable")

        await operator.until(forbidden, after=STATUS_PAUSE)
        message = (await world.condition("EnginesReady"))["message"]
        assert "demo-engine-0: the pod cannot be created" in message
        assert "is forbidden: " in message
        assert (await world.status())["replicas"] == 0
        assert await operator.reconcile() is not None  # Events are not watched: it looks again

        await world.cluster.delete(QUOTA, quota)
        await world.settled()
        await operator.reconcile()
        assert (await world.condition("EnginesReady"))["reason"] == "Loading"


async def test_a_spec_past_an_older_schema_is_invalid(tmp_path: Path) -> None:
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
    """A bound pod is not deleted before its kubelet reports its end, or a client forces the deletion."""
    async with node(world) as name, world.in_process() as operator:
        await world.create()
        await operator.reconcile()
        await world.settled()
        (pod,) = await world.pods("engine")
        await world.bind(pod, name)
        await world.set_pod(pod, scheduled("engine", {"running": {}}))
        await set_node(world, name, "Unknown")
        await operator.reconcile()
        found = await world.condition("Ready")
        assert found["reason"] == "NodeLost"
        assert f"node {name} " in found["message"]

        await world.cluster.delete(POD, pod)  # as the taint manager does, after the toleration
        (leaving,) = await world.pods("engine")
        assert leaving["metadata"]["deletionTimestamp"]

        async def successor() -> bool:
            pods = await world.pods("engine")
            return [new["metadata"]["uid"] for new in pods] not in ([], [pod["metadata"]["uid"]])

        await operator.until(successor, after=STATUS_PAUSE)


async def test_a_pod_that_drains_on_a_node_that_lives_is_left_alone(world: World) -> None:
    async with node(world) as name:
        await world.create()
        await world.reconcile()
        await world.settled()
        (pod,) = await world.pods("engine")
        await world.bind(pod, name)
        await world.cluster.delete(POD, pod)
        await world.reconcile()
        (leaving,) = await world.pods("engine")
        assert leaving["metadata"]["uid"] == pod["metadata"]["uid"]
        assert (await world.status())["engines"]["ranks"][0]["phase"] == "Draining"
        await world.cluster.delete(POD, pod, grace=0)


async def deployment_is_ready(world: World) -> bool:
    """Return whether the Deployment's controller has observed that the pods are ready."""
    found = await world.must_get(DEPLOYMENT, "demo-frontend")
    return bool(found["status"].get("readyReplicas") == found["spec"]["replicas"])
