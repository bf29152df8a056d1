"""Engines follow the load that a fake frontend reports, on a real API server.

The frontend is a server of /status in this process. Its pod, as those of the engines, has no kubelet.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from e2e.kind.apiserver import ApiServer
from e2e.operator.harness.fake_engines import Answer, body, fake_engines
from e2e.operator.harness.in_process import InProcess
from e2e.operator.harness.pod_status import ready
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import EVENT, INFERENCE_SERVICE, Kind
from kvasir_operator.load_polls import POLL_SECONDS
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.resources.names import RANKS_ANNOTATION

BY_LOAD = {"minRanks": 1, "maxRanks": 4, "targets": {"queueSeconds": 2}, "scaleDownAfter": "1m"}
ROWS = 8
AUTOSCALER = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")


@dataclass
class FakeFrontend:
    """Reports this many live requests, and as many engines as there are pods, which compute ROWS each."""

    world: World
    live: int = 0
    reports_load: bool = True

    def answer(self) -> Answer:
        async def respond(writer: Any) -> None:
            engines = len(await self.world.pods("engine"))
            running = min(self.live, ROWS * engines)
            waiting = self.live - running
            load = {
                "seconds": 30.0,
                "engines": engines,
                "arrived": self.live,
                "finished": running,
                "waiting": waiting,
                "running": running,
                "queue_seconds": 9.0 if waiting else 0.0,
                "ttft": 0.1,
                "kv_cache_utilization": 0.1,
            }
            report = {"phase": "Ready", "message": "", "load": load if self.reports_load else None}
            await body(json.dumps(report).encode())(writer)

        return respond


@contextlib.asynccontextmanager
async def loaded(world: World) -> AsyncIterator[tuple[FakeFrontend, int]]:
    """Yield the fake frontend of a service that is scaled by load, and its port."""
    frontend = FakeFrontend(world)
    async with fake_engines({"frontend": frontend.answer()}) as (port, addresses):
        await world.create(autoscaling=BY_LOAD)
        async with world.in_process(port=port) as operator:
            await operator.reconcile()
            await world.settled()
            (pod,) = await world.eventually(lambda: world.pods("frontend"))
            at = addresses["frontend"]
            await world.set_pod(pod, {**ready("frontend"), "podIP": at, "podIPs": [{"ip": at}]})
        yield frontend, port


async def size(world: World) -> tuple[int, str]:
    found = await world.stateful_set()
    return found["spec"]["replicas"], found["metadata"]["annotations"][RANKS_ANNOTATION]


async def until_size(world: World, operator: InProcess, ranks: int) -> None:
    """Poll and reconcile, on the operator's clock, until the StatefulSet has this size and its pods."""
    for _ in range(100):
        await operator.reconcile(after=POLL_SECONDS)
        if await size(world) == (ranks, str(ranks)):
            break
        await operator.load_polls.poll(Key(world.namespace, "demo"))
    assert await size(world) == (ranks, str(ranks))
    await world.settled(ranks=ranks)
    await world.make_ready("engine")
    await operator.reconcile()


async def test_engines_follow_the_load_of_a_fake_frontend(world: World) -> None:
    """A new operator takes over after each change of the size."""
    async with loaded(world) as (frontend, port):
        for live, sizes in ((22, (3,)), (2, (2, 1))):
            frontend.live = live
            for ranks in sizes:
                async with world.in_process(port=port) as operator:
                    await until_size(world, operator, ranks)
        events = await world.cluster.list(EVENT, world.namespace)
        changes = [event["message"] for event in events if event["reason"] == "Rescaled"]
        assert "3 engines instead of 1: requests wait 9.0 s for an engine (target 2 s)" in changes
        assert len(changes) == 3
        assert (await world.condition("ScalingActive"))["status"] == "True"


async def test_a_real_autoscaler_is_named_in_the_condition(world: World, server: ApiServer) -> None:
    async with loaded(world) as (_, port), world.in_process(port=port) as operator:
        await operator.reconcile()
        with server.controller_manager("horizontal-pod-autoscaler-controller"):
            await world.cluster.create(AUTOSCALER, world.namespace, autoscaler(world))

            async def written() -> bool:
                return bool((await world.service())["spec"]["engine"]["dataParallelSize"] == 3)

            await world.eventually(written)
        await operator.reconcile()
        found = await world.condition("ScalingActive")
        assert (found["status"], found["reason"]) == ("True", "ScaleIgnored")
        assert (
            "kube-controller-manager (a HorizontalPodAutoscaler) has set engine.dataParallelSize to 3"
            in found["message"]
        )
        assert await size(world) == (1, "1")


def autoscaler(world: World) -> Object:
    """Return one that needs no metrics, because its minimum is above the present number."""
    target = {"apiVersion": INFERENCE_SERVICE.api_version, "kind": INFERENCE_SERVICE.kind, "name": "demo"}
    resource = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    return {
        "apiVersion": AUTOSCALER.api_version,
        "kind": AUTOSCALER.kind,
        "metadata": {"name": "demo", "namespace": world.namespace},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 3,
            "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": resource}],
        },
    }


async def test_without_a_load_the_size_stays(world: World) -> None:
    async with loaded(world) as (frontend, port), world.in_process(port=port) as operator:
        frontend.live = 22
        await until_size(world, operator, 3)
        frontend.live, frontend.reports_load = 0, False
        for _ in range(30):
            await operator.load_polls.poll(Key(world.namespace, "demo"))
            await operator.reconcile(after=POLL_SECONDS)
        assert await size(world) == (3, "3")
        found = await world.condition("ScalingActive")
        assert (found["status"], found["reason"]) == ("False", "LoadUnknown")
