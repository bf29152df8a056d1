"""Events that explain missing or waiting pods, read only while a pod waits."""

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from kvasir_contract.phases import Phase
from kvasir_operator.cluster.cluster_client import Cluster, ClusterError
from kvasir_operator.cluster.kinds import EVENT, JOB
from kvasir_operator.observe import objects
from kvasir_operator.observe.observed import ChildKey, ChildObject, Object, Pod, WorkloadState
from kvasir_operator.observe.service_memory import MISSING, ServiceMemory

log = logging.getLogger(__name__)

OVERDUE_SECONDS: Final = 3.0  # without a pod or its volumes
EVENT_MARGIN_SECONDS: Final = 60.0  # an Event may be older than the first look at a missing pod
MAX_PODS_ASKED: Final = 4
# for Events of autoscalers, which allow as much for a new node
MAX_SCALE_UP_SECONDS: Final = 900.0

# Kubernetes has no field for the cause.
_NOT_CREATED: Final = re.compile(
    r"create Pod \S+-(?P<ordinal>\d+) in StatefulSet \S+ failed error: (?P<why>.*)", re.DOTALL
)
_SCALE_UP_EVENTS: Final = ("TriggeredScaleUp", "Nominated")  # of the cluster autoscaler, of Karpenter
_NO_SCALE_UP_EVENT: Final = "NotTriggerScaleUp"
_CLAIM_EVENTS: Final = ("ProvisioningFailed", "FailedBinding")
_MOUNT_EVENTS: Final = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")


class PodEvents:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def mount_failures(self, pods: Sequence[Pod], memory: ServiceMemory, now: float) -> Mapping[str, str]:
        """Return why volumes of waiting pods cannot be mounted, by UID. `now` is monotonic."""
        waiting = [
            pod
            for pod in pods
            if _waits_for_volumes(pod) and _waits_in(Phase.PULLING, pod.uid, memory, now) >= OVERDUE_SECONDS
        ]
        failures = {}
        for pod in waiting[:MAX_PODS_ASKED]:
            for event in await self._read(pod.namespace, f"involvedObject.uid={pod.uid}"):
                if event.get("reason") in _MOUNT_EVENTS:
                    failures[pod.uid] = str(event.get("message", ""))
        return failures

    async def scale_ups(
        self, pods: Sequence[Pod], memory: ServiceMemory, now: float, clock: datetime
    ) -> Mapping[str, str]:
        """Return messages of autoscalers that add nodes, by UID. `now` is monotonic."""
        waiting = {pod.uid for pod in pods if pod.scheduled is False and not pod.terminating and not pod.gates}
        if not any(_waits_in(Phase.SCHEDULING, uid, memory, now) >= OVERDUE_SECONDS for uid in waiting):
            return {}
        since = _stamp(clock - timedelta(seconds=MAX_SCALE_UP_SECONDS))
        namespace, events = pods[0].namespace, []
        for reason in (*_SCALE_UP_EVENTS, _NO_SCALE_UP_EVENT):
            events += await self._read(namespace, f"involvedObject.kind=Pod,reason={reason}")
        last = {event["involvedObject"].get("uid"): event for event in sorted(events, key=objects.event_time)}
        return {
            uid: str(event.get("message", ""))
            for uid, event in last.items()
            if uid in waiting and event["reason"] != _NO_SCALE_UP_EVENT and objects.event_time(event) >= since
        }

    async def not_created(
        self,
        namespace: str,
        stateful_set: WorkloadState | None,
        missing: Mapping[int, float],
        clock: datetime,
    ) -> Mapping[int, str]:
        """Return why pods cannot be created, by ordinal. `missing`: seconds by ordinal."""
        longest = max(missing.values(), default=0.0)
        if longest < OVERDUE_SECONDS or stateful_set is None:
            return {}
        since = _stamp(clock - timedelta(seconds=longest + EVENT_MARGIN_SECONDS))
        refused = {}
        for event in await self._read(namespace, f"involvedObject.uid={stateful_set.uid},reason=FailedCreate"):
            match = _NOT_CREATED.search(event.get("message", ""))
            if match and int(match["ordinal"]) in missing and objects.event_time(event) >= since:
                refused[int(match["ordinal"])] = match["why"]
        return refused

    async def claim_failure(self, claim: ChildObject | None) -> str:
        """Return why a claim gets no volume, or ""."""
        if claim is None or claim.object.get("status", {}).get("phase") != "Pending":
            return ""
        events = await self._read(claim.object["metadata"]["namespace"], f"involvedObject.uid={claim.uid}")
        failures = [event for event in events if event.get("reason") in _CLAIM_EVENTS]
        return str(failures[-1].get("message", "")) if failures else ""

    async def job_failure(self, children: Mapping[ChildKey, ChildObject], pods: Sequence[Pod]) -> str:
        """Return why the Job of a cache gets no pod, or ""."""
        jobs = [child for (kind, _), child in children.items() if kind is JOB and not child.terminating]
        if pods or not jobs or jobs[0].object.get("status", {}).get("conditions"):
            return ""
        fields = f"involvedObject.uid={jobs[0].uid},reason=FailedCreate"
        events = await self._read(jobs[0].object["metadata"]["namespace"], fields)
        return str(events[-1].get("message", "")).removeprefix("Error creating: ") if events else ""

    async def _read(self, namespace: str, fields: str) -> list[Object]:
        try:
            return sorted(await self._cluster.list(EVENT, namespace, fields=fields), key=objects.event_time)
        except ClusterError as error:
            log.debug("cannot read the Events of %s: %s", fields, error)
            return []


def missing_pods(
    stateful_set: WorkloadState | None, pods: Sequence[Pod], memory: ServiceMemory, now: float
) -> Mapping[int, float]:
    """Return for how many seconds pods have been missing, by ordinal. `now` is monotonic."""
    there = {pod.ordinal for pod in pods}
    wanted = range(stateful_set.replicas) if stateful_set is not None else range(0)
    marks = {ordinal: (MISSING, str(ordinal)) for ordinal in wanted if ordinal not in there}
    memory.forget_but(set(marks.values()), of_missing=True)
    return {ordinal: memory.since(mark, now) for ordinal, mark in marks.items()}


def _waits_for_volumes(pod: Pod) -> bool:
    container = pod.current
    return (
        bool(pod.scheduled)
        and not pod.terminating
        and not pod.has_ended
        and container.state in ("", "waiting")
        and container.waiting_reason in ("", "ContainerCreating", "PodInitializing")
    )


def _waits_in(phase: Phase, uid: str, memory: ServiceMemory, now: float) -> float:
    return max((now - seen for mark, seen in memory.first_seen.items() if mark[:2] == (uid, phase)), default=0)


def _stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")
