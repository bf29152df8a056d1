"""reconcile(key): observe → desired → apply → prune → roll → status, for one InferenceService.

The handler of the work queue. Level-triggered: it does not know why it is called, compares what there is with what
there should be, and may be killed anywhere. What it keeps between calls only saves requests.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from kvasir_operator.apply import Applied, Applier, name_taken
from kvasir_operator.cluster import Cluster, NotFoundError, Object
from kvasir_operator.engine_reports import EngineReports
from kvasir_operator.events import NORMAL, WARNING, Events
from kvasir_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, SECRET, SERVICE, STATEFUL_SET
from kvasir_operator.link_keys import new_link_keys
from kvasir_operator.observe import (
    Observed,
    engine_pods,
    frontend_pods,
    lost_nodes,
    observe,
    refused_pods,
)
from kvasir_operator.pods import Phase, PodState, is_owned_by, is_terminating, ordinal, pod_state
from kvasir_operator.reasons import Reason
from kvasir_operator.resources.children import children
from kvasir_operator.resources.names import link_secret_name, workload_name
from kvasir_operator.resources.pod import Images
from kvasir_operator.resources.security import link_keys_of
from kvasir_operator.rollout import pods_to_replace, under_way
from kvasir_operator.spec import InferenceService, InvalidSpec, parse_service
from kvasir_operator.status import (
    Observation,
    Problem,
    Status,
    ready_condition,
    refused_status,
    service_status,
)

log = logging.getLogger(__name__)

STATUS_INTERVAL: Final = 2.0
"""Seconds between two writes of one service's status."""
PROGRESS_INTERVAL: Final = (2.0, 30.0)
"""Seconds between two looks at engines that start, because their progress raises no event: at first, and of an
engine that takes long."""
OVERDUE: Final = 2.0
"""Seconds without a pod after which a rank's is asked for in Events."""
EVENT_MARGIN: Final = 60.0
"""Seconds by which the Event may be older than our look that found no pod."""
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
BLOCKED_INTERVAL: Final = 30.0
"""Seconds until what stands in the way is looked at again: it is not ours, so it is not watched."""
LOST_POD_MARGIN: Final = 30.0
"""Seconds past its grace period after which a pod that is being deleted is taken for lost."""


class Key(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Reconciler:
    def __init__(
        self,
        cluster: Cluster,
        images: Images,
        events: Events,
        reports: EngineReports,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._images = images
        self._events = events
        self._reports = reports
        self._applier = Applier(cluster, events)
        self._monotonic = monotonic
        self._now = now
        self._written: dict[Key, float] = {}
        """When each status was last written."""

    async def reconcile(self, key: Key) -> float | None:
        """Returns the seconds after which it wants to be called again. Raises ClusterError."""
        try:
            resource = await self._cluster.get(INFERENCE_SERVICE, key.namespace, key.name)
        except NotFoundError:
            resource = None
        if resource is None or is_terminating(resource):
            self._written.pop(key, None)  # its children go with it: they have it as their owner
            return None
        previous: Status = resource.get("status") or {}
        try:
            service = parse_service(resource)
        except InvalidSpec as error:
            status = refused_status(str(error), resource["metadata"]["generation"], previous, self._stamp())
            return await self._write_status(key, resource, previous, status)
        observed = await observe(self._cluster, key.namespace, key.name)
        applied = await self._apply(resource, service, observed)
        parts = _parts(service, observed, applied)
        seen = await self._look(resource, service, parts, applied)
        await self._roll(resource, parts, seen)
        status = service_status(service, seen, previous, self._stamp())
        delay = await self._write_status(key, resource, previous, status)
        waits = (delay, _next_look(seen, status, self._now()))
        return min((wait for wait in waits if wait is not None), default=None)

    def _stamp(self) -> str:
        return self._now().strftime(TIME_FORMAT)

    async def _apply(self, resource: Object, service: InferenceService, observed: Observed) -> Applied:
        key = SECRET, link_secret_name(service)
        secret = await self._applier.find(service.namespace, key, observed.children)
        taken = secret is not None and not is_owned_by(secret, service.uid)
        keys = None if taken else ((link_keys_of(secret) if secret else None) or new_link_keys())
        desired = children(service, self._images, keys)
        applied = await self._applier.apply(resource, desired, observed.children)
        await self._applier.prune(resource, desired, observed.children)
        problems = [*([name_taken(key)] if taken else []), *applied.problems, *await self._missing(service)]
        return Applied(applied.children, problems)

    async def _missing(self, service: InferenceService) -> list[Problem]:
        """A Secret that the frontends mount: without it their pods wait, and only an Event would tell why."""
        name = service.frontend.api_keys
        if name is None:
            return []
        try:
            await self._cluster.get(SECRET, service.namespace, name)
        except NotFoundError:
            message = f"frontend.apiKeys names the Secret {name}, which does not exist: create it"
            return [Problem(Reason.INVALID_SPEC, message)]
        return []

    async def _look(
        self, resource: Object, service: InferenceService, parts: "_Parts", applied: Applied
    ) -> Observation:
        reports = await self._reports.of(parts.engines)
        lost = await lost_nodes(self._cluster, [*parts.engines, *parts.frontends], reports)
        await self._release(resource, [pod for pod in parts.engines if self._is_lost(pod, lost)])

        def state(pod: Object, resource_name: str = "") -> PodState:
            report = reports.get(pod["metadata"]["name"])
            node = lost.get(pod["spec"].get("nodeName", ""))
            return pod_state(pod, resource_name=resource_name, report=report, lost_node=node)

        return Observation(
            generation=resource["metadata"]["generation"],
            ranks={ordinal(pod): state(pod, service.engine.resource_name) for pod in parts.engines},
            frontends=[state(pod) for pod in parts.frontends],
            problems=[*applied.problems, *_of_deployment(parts.deployment)],
            reachable=(SERVICE, service.name) in applied.children,
            rolling=under_way(parts.stateful_set, parts.deployment, parts.engines),
            refused=await self._refused(resource, parts),
        )

    async def _refused(self, resource: Object, parts: "_Parts") -> Mapping[int, str]:
        """By rank, why its pod is not there, if it should be by now."""
        there = {ordinal(pod) for pod in parts.engines}
        ranks = resource.get("status", {}).get("engines", {}).get("ranks", ())
        missing = [rank for rank in ranks if rank["phase"] == Phase.SCHEDULING and rank["rank"] not in there]
        since = [datetime.fromisoformat(rank["since"]) for rank in missing]
        if not since or parts.stateful_set is None or (self._now() - min(since)).total_seconds() < OVERDUE:
            return {}
        return await refused_pods(self._cluster, parts.stateful_set, min(since) - timedelta(seconds=EVENT_MARGIN))

    def _is_lost(self, pod: Object, lost: Mapping[str, str]) -> bool:
        """Whether nobody is left on its node who could end it."""
        if not is_terminating(pod):
            return False
        if pod["spec"].get("nodeName", "") in lost:
            return True
        deadline = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
        return (self._now() - deadline).total_seconds() > LOST_POD_MARGIN

    async def _release(self, resource: Object, pods: Sequence[Object]) -> None:
        """Let the StatefulSet make these pods elsewhere. Should one still run, the link knows it from its heir."""
        for pod in pods:
            await self._cluster.delete(POD, pod, grace=0)
            message = f"pod {pod['metadata']['name']} on node {pod['spec'].get('nodeName')}, which does not answer"
            await self._events.say(resource, "Released", message, WARNING)

    async def _roll(self, resource: Object, parts: "_Parts", seen: Observation) -> None:
        if parts.stateful_set is None:
            return
        serving = {state.pod for state in seen.ranks.values() if state.ready}
        for pod in pods_to_replace(parts.stateful_set, parts.engines, serving):
            await self._cluster.delete(POD, pod)
            await self._events.say(resource, "Replacing", f"pod {pod['metadata']['name']} is of an old revision")

    async def _write_status(self, key: Key, resource: Object, previous: Status, status: Status) -> float | None:
        """Returns the seconds after which it may be written, where that is not now."""
        if status == previous:
            return None
        wait = self._written.get(key, -STATUS_INTERVAL) + STATUS_INTERVAL - self._monotonic()
        if wait > 0:
            return wait
        metadata = {"name": key.name, "namespace": key.namespace, "uid": resource["metadata"]["uid"]}
        body = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.kind,
            "metadata": metadata,
            "status": status,
        }
        await self._cluster.apply(INFERENCE_SERVICE, body, force=True, subresource="status")
        self._written[key] = self._monotonic()
        await self._announce(resource, previous, status)
        return None

    async def _announce(self, resource: Object, previous: Status, status: Status) -> None:
        before, after = ready_condition(previous), ready_condition(status)
        if (before.get("status"), before.get("reason")) == (after["status"], after["reason"]):
            return
        log.info("%s/%s: Ready=%s %s: %s", *_names(resource), after["status"], after["reason"], after["message"])
        if after["status"] != before.get("status", "False"):
            reason, kind = ("Ready", NORMAL) if after["status"] == "True" else ("NotReady", WARNING)
            await self._events.say(resource, reason, after["message"], kind)


@dataclass(frozen=True)
class _Parts:
    """The workloads and their pods; None for a workload whose name is taken."""

    stateful_set: Object | None
    deployment: Object | None
    engines: Sequence[Object]
    frontends: Sequence[Object]


def _parts(service: InferenceService, observed: Observed, applied: Applied) -> _Parts:
    stateful_set = applied.children.get((STATEFUL_SET, workload_name(service, "engine")))
    return _Parts(
        stateful_set=stateful_set,
        deployment=applied.children.get((DEPLOYMENT, workload_name(service, "frontend"))),
        engines=engine_pods(observed.pods, stateful_set),
        frontends=frontend_pods(observed.pods),
    )


def _names(resource: Object) -> tuple[str, str]:
    return resource["metadata"]["namespace"], resource["metadata"]["name"]


def _of_deployment(deployment: Object | None) -> list[Problem]:
    """What keeps its controller from making pods: a quota, a policy."""
    conditions = (deployment or {}).get("status", {}).get("conditions", ())
    return [
        Problem(Reason.UNSCHEDULABLE, f"frontend pods cannot be made: {condition.get('message', '')}")
        for condition in conditions
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True"
    ]


def _next_look(seen: Observation, status: Status, now: datetime) -> float | None:
    """Seconds until things may have changed without an event."""
    states = [*seen.ranks.values(), *seen.frontends]
    moving = {state.pod for state in states if state.phase in _MOVING or state.reason is Reason.LINK_REFUSED}
    ranks = status["engines"]["ranks"]
    since = [rank["since"] for rank in ranks if rank["pod"] in moving or rank["rank"] not in seen.ranks]
    if since:
        age = (now - datetime.fromisoformat(max(since))).total_seconds()
        return min(max(age / 10, PROGRESS_INTERVAL[0]), PROGRESS_INTERVAL[1])
    if seen.problems or any(state.phase is Phase.DRAINING or state.reason is Reason.NODE_LOST for state in states):
        return BLOCKED_INTERVAL
    return None


_MOVING: Final = frozenset({Phase.STARTING, Phase.LOADING, Phase.WARMING})
