"""Plays the scheduler and the kubelets of a namespace: pods are bound, start, become ready and end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from e2e.operator.harness.pod_status import ready, starting
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import ClusterError, Object
from kvasir_operator.cluster.kinds import POD

_PERIOD = 0.1
_COMPONENT = "app.kubernetes.io/component"


class Kubelet:
    """Each pass takes every pod one step further, so that each of its states can be observed."""

    def __init__(self, world: World, node: str | None, works: Callable[[Object], bool]) -> None:
        self._world = world
        self._node = node
        self._works = works

    async def run(self) -> None:
        while True:
            for pod in await self._world.cluster.list(POD, self._world.namespace):
                with contextlib.suppress(ClusterError):  # it is gone, or a controller has changed it
                    await self._step(pod)
            await asyncio.sleep(_PERIOD)

    async def _step(self, pod: Object) -> None:
        component = pod["metadata"]["labels"][_COMPONENT]
        conditions = {entry["type"]: entry["status"] for entry in pod.get("status", {}).get("conditions", ())}
        if "deletionTimestamp" in pod["metadata"]:
            await self._world.cluster.delete(POD, pod, grace=0)
        elif self._node is not None and not pod["spec"].get("nodeName"):
            await self._world.bind(pod, self._node)
        elif "Ready" not in conditions:
            await self._world.set_pod(pod, starting(component))
        elif conditions["Ready"] != "True" and self._works(pod):
            await self._world.set_pod(pod, ready(component))


@contextlib.asynccontextmanager
async def kubelet(
    world: World, node: str | None = None, works: Callable[[Object], bool] = lambda _: True
) -> AsyncIterator[None]:
    """Run pods in the block, on `node` if it is given. `works` selects the pods that become ready."""
    task = asyncio.create_task(Kubelet(world, node, works).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
