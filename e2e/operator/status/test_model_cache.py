"""The cache of a model, with the controller of Jobs. Tests write the status of its pod, as a kubelet does."""

import json
from typing import Any, Final

from e2e.kind.apiserver import ApiServer
from e2e.operator.harness.cluster_faults import QUOTA, set_quota, write_event
from e2e.operator.harness.fake_engines import fake_engines, raw_report
from e2e.operator.harness.pod_status import container, crash_looping, starting
from e2e.operator.harness.rights import rights_of_the_manifests
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import CLAIM, INFERENCE_SERVICE, JOB, STATEFUL_SET
from kvasir_operator.resources.model_volume import cache_directory

SOURCE: Final = "hf://org/name"
FAILURE: Final = {"reason": "DownloadFailed", "message": "the hub answered 503; wait a while and try again"}


async def create(world: World, **cache: Any) -> None:
    await world.create(model={"source": SOURCE, "cache": {"size": "1Gi", **cache}})


async def jobs(world: World) -> list[Object]:
    return await world.cluster.list(JOB, world.namespace, "app.kubernetes.io/instance=demo")


async def fetching_pod(world: World) -> Object:
    pods = await world.pods("model")
    return pods[0] if pods else {}


async def succeed(world: World) -> None:
    pod = await world.eventually(lambda: fetching_pod(world))
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    status = {"phase": "Succeeded", "containerStatuses": [container("model", ended)]}
    await world.set_pod(pod, {**starting("model"), **status})


async def serves(world: World) -> bool:
    return await world.get(STATEFUL_SET, "demo-engine") is not None


async def test_pods_start_once_the_job_has_filled_the_cache(world: World) -> None:
    async with world.in_process() as operator:
        await create(world)
        await operator.reconcile()
        assert not await serves(world)
        claim = await world.must_get(CLAIM, "demo-model")
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        cached = await world.condition("ModelCached")
        assert (cached["status"], cached["reason"]) == ("False", "Loading")
        pod = await world.eventually(lambda: fetching_pod(world))
        await world.set_pod(pod, crash_looping("model", json.dumps(FAILURE)))
        await operator.reconcile()
        cached, ready = await world.condition("ModelCached"), await world.condition("Ready")
        assert (cached["status"], cached["reason"], ready["reason"]) == (
            "False",
            "DownloadFailed",
            "DownloadFailed",
        )
        assert FAILURE["message"] in cached["message"]
        await succeed(world)
        await operator.until(lambda: serves(world))
        await operator.until(lambda: is_pruned(world))
        assert (await world.condition("ModelCached"))["status"] == "True"
        for pod in await world.pods("engine"):
            source = pod["spec"]["containers"][0]["args"][1]
            assert source.endswith(f"/{cache_directory(SOURCE)}")


async def test_the_progress_of_a_download_is_in_the_status(world: World) -> None:
    answer = raw_report('{"done": 3100000000, "total": 16400000000}')
    async with fake_engines({"job": answer}) as (port, addresses), world.in_process(port=port) as operator:
        await create(world)
        await operator.reconcile()
        pod = await world.eventually(lambda: fetching_pod(world))
        address = {"podIP": addresses["job"], "podIPs": [{"ip": addresses["job"]}]}
        await world.set_pod(pod, {**starting("model"), **address})
        await operator.reconcile()
        assert "Loading 3.1/16.4 GB" in (await world.condition("ModelCached"))["message"]
        assert "Loading 3.1/16.4 GB" in (await world.condition("Ready"))["message"]


async def is_pruned(world: World) -> bool:
    return not await jobs(world) and (await world.condition("ModelCached")).get("status") == "True"


async def test_a_claim_without_a_volume_is_named(world: World) -> None:
    async with world.in_process() as operator:
        await create(world)
        await operator.reconcile()
        claim = await world.must_get(CLAIM, "demo-model")
        status = {**claim, "status": {"phase": "Pending"}}
        await world.request("PUT", CLAIM.path(world.namespace, "demo-model", "status"), status)
        claim = await world.must_get(CLAIM, "demo-model")
        await write_event(world, claim, "FailedBinding", "no storage class is set")
        await operator.reconcile()
        cached = await world.condition("ModelCached")
        assert (cached["reason"], "no storage class is set" in cached["message"]) == ("VolumeFailed", True)


async def test_a_quota_that_forbids_the_pod_of_the_job_is_named(world: World) -> None:
    quota = await set_quota(world, pods=0)
    async with world.in_process() as operator:
        await create(world)

        async def is_named() -> bool:
            cached = await world.condition("ModelCached")
            return cached["reason"] == "Unschedulable" and "exceeded quota" in cached["message"]

        await operator.until(is_named)
        await world.cluster.delete(QUOTA, quota)


async def test_a_retained_claim_serves_the_next_service(world: World) -> None:
    async with world.in_process() as operator:
        await create(world, retain=True)
        await operator.reconcile()
        await succeed(world)
        await operator.until(lambda: serves(world))
        claim = await world.must_get(CLAIM, "demo-model")
        assert "ownerReferences" not in claim["metadata"]
        await world.cluster.delete(INFERENCE_SERVICE, await world.service())
        await world.eventually(lambda: is_gone(world))
        await create(world, retain=True)
        await operator.reconcile()
        assert await serves(world)
        assert not await jobs(world)
        assert (await world.must_get(CLAIM, "demo-model"))["metadata"]["uid"] == claim["metadata"]["uid"]


async def is_gone(world: World) -> bool:
    return not await serves(world) and not await jobs(world)


async def test_a_cache_of_a_running_service_ends_no_pod(world: World) -> None:
    async with world.in_process() as operator:
        await world.create(model={"source": SOURCE})
        await operator.reconcile()
        await world.settled()
        before = await world.stateful_set()
        await world.update(lambda spec: spec["model"].update(cache={"size": "1Gi"}))
        await operator.reconcile()
        await world.eventually(lambda: fetching_pod(world))
        await operator.reconcile()
        assert (await world.stateful_set())["spec"] == before["spec"]
        assert [pod["metadata"].get("deletionTimestamp") for pod in await world.pods("engine")] == [None]
        await succeed(world)
        await operator.until(lambda: has_another_template(world, before))


async def has_another_template(world: World, before: Object) -> bool:
    return bool((await world.stateful_set())["spec"]["template"] != before["spec"]["template"])


async def test_the_rights_of_the_manifests_suffice_for_a_cache(world: World, server: ApiServer) -> None:
    async with rights_of_the_manifests(world) as account:
        kubeconfig = server.kubeconfig_of(world.namespace, account)
        async with world.operator(kubeconfig=kubeconfig) as operator:
            await create(world)
            await succeed(world)
            await world.eventually(lambda: serves(world))
            await world.eventually(lambda: is_pruned(world))
            assert await operator.stop() == 0
            assert not [line for line in operator.log if "WARNING" in line or "ERROR" in line]


async def test_another_storage_class_waits_for_the_old_claim(world: World) -> None:
    """As the message of the schema advises: the field is removed and added again."""
    async with world.in_process() as operator:
        await create(world, storageClassName="fast")
        await operator.reconcile()
        await succeed(world)
        await operator.until(lambda: serves(world))
        await world.update(lambda spec: spec["model"].pop("cache"))
        await operator.reconcile()
        old = await world.must_get(CLAIM, "demo-model")
        assert "deletionTimestamp" in old["metadata"]
        await world.update(lambda spec: spec["model"].update(cache={"size": "1Gi", "storageClassName": "slow"}))
        await operator.reconcile()
        cached = await world.condition("ModelCached")
        assert (cached["reason"], "is being deleted" in cached["message"]) == ("Loading", True)
        await world.cluster.merge(CLAIM, old, {"metadata": {"finalizers": None}})
        await operator.until(lambda: is_made_again(world, old))
        assert (await world.must_get(CLAIM, "demo-model"))["spec"]["storageClassName"] == "slow"


async def is_made_again(world: World, old: Object) -> bool:
    found = await world.get(CLAIM, "demo-model")
    return found is not None and found["metadata"]["uid"] != old["metadata"]["uid"]
