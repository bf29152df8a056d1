"""A namespace of a test's own on the API server, and what a test does there.

No node runs there, so no kubelet: a pod is what the test says it is (`set_pod`), by writing the pod's status.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.kind.apiserver import ApiServer
from kvasir_operator.cluster import Cluster, ClusterError, NotFoundError, Object
from kvasir_operator.engine_reports import EngineReports
from kvasir_operator.events import Events
from kvasir_operator.kinds import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    Kind,
)
from kvasir_operator.reconcile import Key, Reconciler
from kvasir_operator.resources.pod import Images

NAMESPACE: Final = Kind("v1", "Namespace", "namespaces")
IMAGES: Final = Images(frontend="kvasir-frontend:test", engine="kvasir-engine:test")
CHILDREN: Final = (
    (SERVICE_ACCOUNT, ""),
    (SECRET, "-link"),
    (SERVICE, ""),
    (SERVICE, "-frontend"),
    (SERVICE, "-engine"),
    (DEPLOYMENT, "-frontend"),
    (STATEFUL_SET, "-engine"),
)
"""Kind, and what follows the service's name in the child's."""
CRD: Final = Path(__file__).parents[2] / "crds" / "inferenceservices.serving.kvasir.dev.yaml"
CONTROLLERS: Final = (
    "statefulset-controller",
    "deployment-controller",
    "replicaset-controller",
    "garbage-collector-controller",
)
"""That make pods of workloads, and collect what has no owner."""
PATIENCE: Final = 60.0


async def install(server: ApiServer, crd: Path = CRD) -> None:
    """The CRD, until the API server serves it."""
    server.kubectl("apply", "--server-side", "-f", str(crd))
    cluster = await Cluster.connect(str(server.kubeconfig))
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(ClusterError):
                await cluster.probe(INFERENCE_SERVICE, None)
                break
            await asyncio.sleep(0.05)
    await cluster.close()


@dataclass
class World:
    cluster: Cluster
    namespace: str
    kubeconfig: Path

    async def request(
        self, method: str, path: str, body: Object | None = None, query: Mapping[str, str] | None = None
    ) -> Object:
        """As somebody else than the operator."""
        return await self.cluster._request(method, path, {"fieldManager": "somebody", **(query or {})}, body)

    # ------------------------------------------------------------------------------------------------- services

    async def create(self, name: str = "demo", **spec: Any) -> Object:
        engine = {"resourceName": "", **spec.pop("engine", {})}
        body = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"model": {"source": "demo://"}, "engine": engine, **spec},
        }
        return await self.cluster.create(INFERENCE_SERVICE, self.namespace, body)

    async def service(self, name: str = "demo") -> Object:
        return await self.cluster.get(INFERENCE_SERVICE, self.namespace, name)

    async def update(self, change: Callable[[Object], None], name: str = "demo") -> None:
        resource = await self.service(name)
        change(resource["spec"])
        await self.cluster.replace(INFERENCE_SERVICE, resource)

    async def condition(self, kind: str, name: str = "demo") -> Object:
        conditions = (await self.service(name)).get("status", {}).get("conditions", ())
        return next((condition for condition in conditions if condition["type"] == kind), {})

    async def reconcile(self, name: str = "demo") -> float | None:
        """Once, by an operator that has just started."""
        reports = EngineReports()
        reconciler = Reconciler(self.cluster, IMAGES, Events(self.cluster), reports)
        try:
            return await reconciler.reconcile(Key(self.namespace, name))
        finally:
            await reports.close()

    # ------------------------------------------------------------------------------------------------- children

    async def get(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self.cluster.get(kind, self.namespace, name)
        except NotFoundError:
            return None

    async def must_get(self, kind: Kind, name: str) -> Object:
        return await self.cluster.get(kind, self.namespace, name)

    async def children(self, name: str = "demo") -> dict[tuple[str, str], Object]:
        found = {(kind.kind, name + end): await self.get(kind, name + end) for kind, end in CHILDREN}
        return {key: child for key, child in found.items() if child is not None}

    async def settled(self, name: str = "demo", ranks: int = 1) -> None:
        """Until the controllers have made the pods, and write no more."""

        async def done() -> bool:
            engines = await self.get(STATEFUL_SET, f"{name}-engine")
            frontends = await self.get(DEPLOYMENT, f"{name}-frontend")
            return (
                all(
                    workload is not None
                    and workload.get("status", {}).get("observedGeneration") == workload["metadata"]["generation"]
                    and workload["status"].get("replicas", 0) == workload["spec"]["replicas"]
                    for workload in (engines, frontends)
                )
                and len(await self.pods("engine", name)) == ranks
            )

        await self.eventually(done)

    # ----------------------------------------------------------------------------------------------------- pods

    async def pods(self, component: str, name: str = "demo") -> list[Object]:
        selector = f"app.kubernetes.io/instance={name},app.kubernetes.io/component={component}"
        found = await self.cluster.list(POD, self.namespace, selector)
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    async def set_pod(self, pod: Object, status: Object) -> None:
        """Give it a status, as a kubelet would."""
        metadata = {"name": pod["metadata"]["name"], "namespace": self.namespace, "uid": pod["metadata"]["uid"]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        await self.cluster.apply(POD, body, force=True, subresource="status")

    async def make_ready(self, component: str, name: str = "demo") -> None:
        for pod in await self.pods(component, name):
            await self.set_pod(pod, ready(component))

    async def bind(self, pod: Object, node: str) -> None:
        """As a scheduler would."""
        name = pod["metadata"]["name"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        binding = Kind("v1", "Binding", f"pods/{name}/binding")
        await self.cluster.create(binding, self.namespace, body)

    # ------------------------------------------------------------------------------------------------ operators

    @contextlib.asynccontextmanager
    async def operator(self, *options: str, kubeconfig: Path | None = None) -> AsyncIterator["OperatorProcess"]:
        """A real one, that watches this namespace and has its Lease here."""
        arguments = [
            *("--frontend-image", IMAGES.frontend, "--engine-image", IMAGES.engine),
            *("--namespaces", self.namespace, "--lease-namespace", self.namespace),
            *("--host", "127.0.0.1", "--port", "0", *options),
        ]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvasir_operator", *arguments),
            stderr=asyncio.subprocess.PIPE,
            env={"KUBECONFIG": str(kubeconfig or self.kubeconfig), "PATH": ""},
        )
        running = OperatorProcess(process)
        try:
            yield running
        finally:
            await running.kill()

    async def eventually(self, check: Callable[[], Awaitable[object]], patience: float = PATIENCE) -> Any:
        """What the check returns when it is true; it is asked until then."""
        async with asyncio.timeout(patience):
            while True:
                answer = await check()
                if answer:
                    return answer
                await asyncio.sleep(0.05)


class OperatorProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[str] = []
        self._grown = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def says(self, text: str, patience: float = PATIENCE) -> str:
        """Waits for a line of the log that contains the text."""
        async with asyncio.timeout(patience), self._grown:
            while not (lines := [line for line in self.log if text in line]):
                assert not self._reader.done(), f"it ended without saying {text!r}: {self.log}"
                await self._grown.wait()
        return lines[0]

    async def stop(self) -> int:
        self.process.terminate()
        return await self.ended()

    async def kill(self) -> int:
        if self.process.returncode is None:
            self.process.kill()
        return await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            await self._reader
            return await self.process.wait()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode().rstrip())
            async with self._grown:
                self._grown.notify_all()
        async with self._grown:
            self._grown.notify_all()


def ready(component: str) -> Object:
    """The status of a pod that serves."""
    return {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [container(component, {"running": {}}, ready=True)],
    }


def scheduled(component: str, state: Object, **more: Any) -> Object:
    """The status of a pod that has a node and is not ready."""
    return {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
        "containerStatuses": [container(component, state, **more)],
    }


def container(name: str, state: Object, *, ready: bool = False, **more: Any) -> Object:
    status = {"name": name, "image": "i", "imageID": "i", "ready": ready, "restartCount": 0, "state": state}
    return {**status, **more}
