"""One namespace of the API server, and the actions of a test in it.

There are no nodes and no kubelets: tests write the status of a pod (`set_pod`, or `kubelet.py`).
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.kind.apiserver import ApiServer
from e2e.operator.harness.in_process import Clock, InProcess, eventually
from e2e.operator.harness.operator_process import PATIENCE, OperatorProcess
from e2e.operator.harness.pod_status import ready
from kvasir_contract.endpoints import OPS_PORT
from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, ConflictError, NotFoundError, Object
from kvasir_operator.cluster.events import Events
from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    Kind,
)
from kvasir_operator.load_polls import LoadPolls
from kvasir_operator.observe.cordons import Cordons
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.reconciler import Reconciler
from kvasir_operator.resources.names import LINK_KEYS_ANNOTATION
from kvasir_operator.resources.release import Release

NAMESPACE: Final = Kind("v1", "Namespace", "namespaces")
RELEASE: Final = Release(frontend_image="kvasir-frontend:test", engine_image="kvasir-engine:test", version="1.0.0")
CHILDREN: Final = (
    (SERVICE_ACCOUNT, ""),
    (SECRET, "-link"),
    (SERVICE, ""),
    (SERVICE, "-frontend"),
    (SERVICE, "-engine"),
    (DISRUPTION_BUDGET, "-frontend"),
    (DISRUPTION_BUDGET, "-engine"),
    (NETWORK_POLICY, "-frontend"),
    (NETWORK_POLICY, "-engine"),
    (DEPLOYMENT, "-frontend"),
    (STATEFUL_SET, "-engine"),
)
"""Kind, and the suffix of the child's name after the service's name. The Secret's name also has a random suffix."""
CRD: Final = Path(__file__).parents[3] / "crds" / "inferenceservices.serving.kvasir.dev.yaml"
CONTROLLERS: Final = (
    "statefulset-controller",
    "deployment-controller",
    "replicaset-controller",
    "job-controller",
    "garbage-collector-controller",
    "disruption-controller",
)
"""They create the pods of workloads, delete objects without an owner, and compute the budgets of evictions."""


async def install(server: ApiServer, crd: Path = CRD) -> None:
    """Install the CRD, and wait until the API server serves it."""
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
        """Send a request as a user instead of the operator."""
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

    async def status(self, name: str = "demo") -> Object:
        status: Object = (await self.service(name)).get("status", {})
        return status

    async def update(self, change: Callable[[Object], None], name: str = "demo") -> None:
        """Change the spec."""
        await self.edit(INFERENCE_SERVICE, name, lambda resource: change(resource["spec"]))

    async def edit(self, kind: Kind, name: str, change: Callable[[Object], Any]) -> Object:
        """Change an object as a user does. Retried if a controller has written at the same time."""

        async def done() -> Object | None:
            found = await self.must_get(kind, name)
            change(found)
            try:
                return await self.request("PUT", kind.path(self.namespace, name), found)
            except ConflictError:
                return None

        result: Object = await self.eventually(done)
        return result

    async def condition(self, kind: str, name: str = "demo") -> Object:
        conditions = (await self.status(name)).get("conditions", ())
        return next((condition for condition in conditions if condition["type"] == kind), {})

    # ------------------------------------------------------------------------------------------------- children

    async def get(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self.cluster.get(kind, self.namespace, name)
        except NotFoundError:
            return None

    async def must_get(self, kind: Kind, name: str) -> Object:
        return await self.cluster.get(kind, self.namespace, name)

    async def stateful_set(self, name: str = "demo") -> Object:
        return await self.must_get(STATEFUL_SET, f"{name}-engine")

    async def deployment(self, name: str = "demo") -> Object:
        return await self.must_get(DEPLOYMENT, f"{name}-frontend")

    async def link_secret(self, name: str = "demo") -> str:
        """Return the name of the Secret that the workloads mount; "" if there are none yet."""
        for kind, end in ((STATEFUL_SET, "-engine"), (DEPLOYMENT, "-frontend")):
            workload = await self.get(kind, name + end)
            if workload is not None:
                annotations: Object = workload["spec"]["template"]["metadata"].get("annotations", {})
                return str(annotations.get(LINK_KEYS_ANNOTATION, ""))
        return ""

    async def child(self, kind: Kind, end: str, name: str = "demo") -> Object | None:
        """Return the child for an entry of CHILDREN."""
        return await self.get(kind, await self.child_name(kind, end, name))

    async def child_name(self, kind: Kind, end: str, name: str = "demo") -> str:
        return (await self.link_secret(name)) or f"{name}{end}" if kind == SECRET else name + end

    async def children(self, name: str = "demo") -> dict[tuple[str, str], Object]:
        found = {(kind.kind, name + end): await self.child(kind, end, name) for kind, end in CHILDREN}
        return {key: child for key, child in found.items() if child is not None}

    async def all_children(self, name: str = "demo") -> bool:
        return len(await self.children(name)) == len(CHILDREN)

    async def settled(self, name: str = "demo", ranks: int = 1) -> None:
        """Wait until the controllers have created the pods and write nothing more."""

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

    async def pod(self, name: str) -> Object:
        return await self.must_get(POD, name)

    async def set_pod(self, pod: Object, status: Object) -> None:
        """Write the pod's status, as a kubelet does."""
        metadata = {"name": pod["metadata"]["name"], "namespace": self.namespace, "uid": pod["metadata"]["uid"]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        await self.cluster.apply(POD, body, force=True, subresource="status")

    async def make_ready(self, component: str, name: str = "demo") -> None:
        for pod in await self.pods(component, name):
            await self.set_pod(pod, ready(component))

    async def bind(self, pod: Object, node: str) -> None:
        """Bind the pod to the node, as a scheduler does."""
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

    async def reconcile(self, name: str = "demo", **options: Any) -> float | None:
        """Reconcile once, as an operator that has just started."""
        async with self.in_process(**options) as operator:
            return await operator.reconcile(name)

    @contextlib.asynccontextmanager
    async def in_process(
        self, *, release: Release = RELEASE, ahead: float = 0.0, port: int = OPS_PORT, **options: Any
    ) -> AsyncIterator[InProcess]:
        """Run an operator in this process.

        `ahead` is the number of seconds by which its clocks are ahead. `port` is the port of the pods' /status. The
        Reconciler gets the other options.
        """
        reports, clock, cordons = StatusReports(port=port), Clock(ahead), Cordons[Key](lambda _: None)
        load_polls = LoadPolls(reports, lambda _: None, monotonic=clock.monotonic)
        reconciler = Reconciler(
            self.cluster,
            release,
            Events(self.cluster),
            reports,
            cordons=cordons,
            load_polls=load_polls,
            monotonic=clock.monotonic,
            now=clock.now,
            **options,
        )
        try:
            yield InProcess(self.namespace, reconciler, clock, cordons, load_polls)
        finally:
            await load_polls.close()
            await reports.close()

    @contextlib.asynccontextmanager
    async def operator(self, *options: str, kubeconfig: Path | None = None) -> AsyncIterator[OperatorProcess]:
        """Start a process that watches this namespace and has its Lease in it."""
        arguments = [
            *("--frontend-image", RELEASE.frontend_image, "--engine-image", RELEASE.engine_image),
            *("--namespaces", self.namespace, "--lease-namespace", self.namespace),
            *("--host", "127.0.0.1", "--port", "0", *options),
        ]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvasir_operator", *arguments),
            stderr=asyncio.subprocess.PIPE,
            limit=2**24,  # bytes per line of its log
            env={
                "KUBECONFIG": str(kubeconfig or self.kubeconfig),
                "PATH": "",
                "PYTHONPATH": os.pathsep.join(sys.path),  # the code under test, even if another is installed
            },
        )
        running = OperatorProcess(process)
        try:
            yield running
        finally:
            await running.kill()

    async def eventually(self, check: Callable[[], Awaitable[object]], patience: float = PATIENCE) -> Any:
        """Return the result of the check as soon as it is true."""
        return await eventually(check, patience)
