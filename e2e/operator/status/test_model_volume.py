"""A model on a PersistentVolumeClaim."""

from typing import Final

from e2e.operator.harness.world import World

MISSING: Final = 'persistentvolumeclaim "models" not found'


async def test_a_missing_claim_of_the_model_is_named(world: World) -> None:
    async with world.in_process() as operator:
        await world.create(model={"source": "pvc://models/qwen"})
        await operator.reconcile()
        await world.settled(ranks=1)
        pod = await world.pod("demo-engine-0")
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        await world.set_pod(pod, {"conditions": [{**scheduled, "message": f"0/2 nodes are available: {MISSING}."}]})
        await operator.reconcile()
        ready = await world.condition("Ready")
        assert ready["reason"] == "Unschedulable"
        assert MISSING in ready["message"]
        assert "model.source" in ready["message"]
        (mount,) = [each for each in pod["spec"]["volumes"] if each["name"] == "kvasir-model"]
        assert mount["persistentVolumeClaim"] == {"claimName": "models"}
