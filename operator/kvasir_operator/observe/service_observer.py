"""Reads everything that a plan needs, into one `Observed`.

Objects are listed from the API server, because a disconnected watch misses deletions. Those that may not be read
(nodes in a namespaced installation) are omitted.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import StatusReport
from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, ConflictError, NotFoundError
from kvasir_operator.cluster.kinds import (
    CHILDREN,
    CLAIM,
    DEPLOYMENT,
    JOB,
    OPTIONAL,
    POD,
    RARE,
    SECRET,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    Kind,
)
from kvasir_operator.observe import objects
from kvasir_operator.observe.cordons import Cordons, Nodes
from kvasir_operator.observe.frontend_links import awaited_frontends, is_linked
from kvasir_operator.observe.observed import (
    ChildKey,
    ChildObject,
    Member,
    Object,
    Observed,
    Ownership,
    Pod,
    PodState,
    WorkloadState,
)
from kvasir_operator.observe.pod_events import PodEvents, missing_pods
from kvasir_operator.observe.pod_state import pod_state
from kvasir_operator.observe.service_memory import Key, Mark, ServiceMemory
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.resources.children import child_keys, children_selector
from kvasir_operator.resources.model_volume import claim_name
from kvasir_operator.resources.names import LINK_KEYS_ANNOTATION, RELEASE_ANNOTATION, workload_name
from kvasir_operator.spec import InferenceService

log = logging.getLogger(__name__)

SECRET_INTERVAL_SECONDS: Final = 240.0  # while no pod waits


class ServiceObserver:
    def __init__(
        self,
        cluster: Cluster,
        reports: StatusReports,
        cordons: Cordons[Key],
        *,
        reads_nodes: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._reports = reports
        self._events = PodEvents(cluster)
        self._nodes = Nodes(cluster, cordons, reads_nodes=reads_nodes)
        self._monotonic = monotonic
        self._now = now

    def now(self) -> datetime:
        return self._now()

    async def observe(self, resource: Object, service: InferenceService, memory: ServiceMemory) -> Observed:
        children, pods, missing_kinds = await self._children(service, memory)
        stateful_set = _workload(children, (STATEFUL_SET, workload_name(service, "engine")))
        deployment = _workload(children, (DEPLOYMENT, workload_name(service, "frontend")))
        engines, frontends = objects.engine_pods(pods, stateful_set), objects.frontend_pods(pods, service)
        fetches = objects.fetching_pods(pods)
        leaving = [objects.pod_of(pod) for pod in pods if objects.is_leaving_frontend(pod)]
        reports = await self._reports.of([*engines, *frontends, *fetches, *leaving])
        self._remember_reports(memory, reports, [*engines, *frontends])
        members = await self._members([*engines, *frontends, *fetches], service, memory, reports)
        fetching = tuple(member for member in members if member.pod.component == "model")
        members = [member for member in members if member not in fetching]
        # Prefer the newest name, which the ServiceAccount may not record yet.
        link_secret = memory.link_secret or _link_secret(children, service)
        await self._check_secrets(service, link_secret, members, memory)
        cordoned, members = await self._nodes.drained(Key(service.namespace, service.name), members)
        missing = missing_pods(stateful_set, engines, memory, self._monotonic())
        return Observed(
            generation=resource["metadata"]["generation"],
            asked_release=resource["metadata"].get("annotations", {}).get(RELEASE_ANNOTATION, ""),
            children=children,
            stateful_set=stateful_set,
            deployment=deployment,
            engines=tuple(member for member in members if member.pod.component == "engine"),
            frontends=tuple(member for member in members if member.pod.component == "frontend"),
            fetches=fetching,
            claim_failure=await self._events.claim_failure(children.get((CLAIM, claim_name(service)))),
            job_failure=await self._events.job_failure(children, fetches),
            leaving_frontends=tuple((pod, reports.get(pod.uid)) for pod in leaving),
            not_created=await self._events.not_created(service.namespace, stateful_set, missing, self._now()),
            missing=missing,
            link_secret=link_secret,
            link_secret_exists=memory.link_secret_exists,
            missing_key_secrets=memory.missing_key_secrets,
            cordoned=cordoned,
            refusals=memory.refusals,
            now=self._monotonic(),
            unchanged=dict(memory.unchanged),
            missing_kinds=missing_kinds,
            requested=objects.requested_ranks(resource),
        )

    # ------------------------------------------------------------------------------------------------ children

    async def _children(
        self, service: InferenceService, memory: ServiceMemory
    ) -> tuple[dict[ChildKey, ChildObject], list[Object], frozenset[Kind]]:
        keys, selector = child_keys(service), children_selector(service.name)
        wanted = {*(kind for kind, _ in keys), *memory.rare_kinds}
        wanted |= {JOB} if CLAIM in wanted else set()  # which is not among the keys
        kinds = [kind for kind in CHILDREN if kind not in RARE or kind in wanted]
        pods, listed = await asyncio.gather(
            self._cluster.list(POD, service.namespace, selector),
            asyncio.gather(*(self._list(kind, service.namespace, selector) for kind in kinds)),
        )
        found = {
            (kind, resource["metadata"]["name"]): resource
            for kind, resources in zip(kinds, listed, strict=True)
            for resource in resources or ()
        }
        missing_kinds = frozenset(kind for kind, resources in zip(kinds, listed, strict=True) if resources is None)
        # A child's name without our labels: a foreign object, or ours with its labels removed.
        missing = [key for key in keys if key not in found and key[0] not in missing_kinds]
        unlabelled = await asyncio.gather(*(self._find(service, key) for key in missing))
        found |= {key: child for key, child in zip(missing, unlabelled, strict=True) if child is not None}
        memory.rare_kinds = frozenset(kind for kind, _ in (*found, *keys) if kind in RARE)
        return {key: objects.child_of(resource, service) for key, resource in found.items()}, pods, missing_kinds

    async def _list(self, kind: Kind, namespace: str, selector: str) -> list[Object] | None:
        # None without a CustomResourceDefinition
        try:
            return await self._cluster.list(kind, namespace, selector)
        except NotFoundError:
            if kind in OPTIONAL:
                return None
            raise

    async def _find(self, service: InferenceService, key: ChildKey) -> Object | None:
        kind, name = key
        try:
            return await self._cluster.get(kind, service.namespace, name)
        except NotFoundError:
            return None

    # ---------------------------------------------------------------------------------------------------- pods

    async def _members(
        self,
        pods: Sequence[Pod],
        service: InferenceService,
        memory: ServiceMemory,
        fresh: Mapping[str, StatusReport],  # of this pass; those in the memory may be older
    ) -> list[Member]:
        reports = memory.reports
        pods = await self._nodes.name_taints(pods, service.engine.resource_name, self._monotonic())
        lost = await self._nodes.lost([pod for pod in pods if not pod.ready and pod.uid not in reports])
        failures = await self._events.mount_failures(pods, memory, self._monotonic())
        scale_ups = await self._events.scale_ups(pods, memory, self._monotonic(), self._now())
        marks: set[Mark] = set()
        states: dict[str, PodState] = {}
        waited: dict[str, float] = {}
        unreached: dict[str, float] = {}
        for pod in pods:
            state = states[pod.uid] = pod_state(
                pod,
                resource_name=service.engine.resource_name if pod.component == "engine" else "",
                amount_of_resource=service.engine.workers_per_pod,
                report=reports.get(pod.uid),
                lost_node=lost.get(pod.node, ""),
                mount_failure=failures.get(pod.uid, ""),
                scale_up=scale_ups.get(pod.uid, ""),
            )
            mark: Mark = (pod.uid, state.phase, "leaving" if pod.terminating else "")
            marks.add(mark)
            waited[pod.uid] = memory.since(mark, self._monotonic())
            if pod.component == "frontend" and not _is_reached(pod, fresh.get(pod.uid)):
                mark = (pod.uid, "unreached")
                marks.add(mark)
                unreached[pod.uid] = memory.since(mark, self._monotonic())
        memory.forget_but(marks, of_missing=False)
        frontends = awaited_frontends(pods, waited)
        return [
            Member(
                pod,
                states[pod.uid],
                waited[pod.uid],
                is_linked(reports.get(pod.uid), frontends),
                reported=pod.uid in reports,
                report=fresh.get(pod.uid),
                adapters=reports[pod.uid].adapters if pod.uid in reports else None,
                unreached=unreached.get(pod.uid),
            )
            for pod in pods
        ]

    def _remember_reports(
        self, memory: ServiceMemory, reports: Mapping[str, StatusReport], pods: Sequence[Pod]
    ) -> None:
        # of ready pods, so that one late answer changes nothing
        kept = {pod.uid: memory.reports[pod.uid] for pod in pods if pod.ready and pod.uid in memory.reports}
        memory.reports = {**kept, **reports}

    # ------------------------------------------------------------------------------------------------- Secrets

    async def _check_secrets(
        self, service: InferenceService, link_secret: str, members: Collection[Member], memory: ServiceMemory
    ) -> None:
        # often while pods wait, otherwise rarely
        names = tuple(filter(None, (link_secret, *service.named_secrets.values())))
        changed, memory.secrets = names != memory.secrets, names
        waiting = not members or any(member.state.phase is Phase.PULLING for member in members)
        unsure = changed or memory.link_secret_exists is False or memory.missing_key_secrets
        if not waiting and not unsure and self._monotonic() - memory.secrets_checked < SECRET_INTERVAL_SECONDS:
            return
        memory.secrets_checked = self._monotonic()
        memory.link_secret_exists = (
            await self._exists(SECRET, service.namespace, link_secret) if link_secret else None
        )
        memory.missing_key_secrets = frozenset(
            [
                field
                for field, name in service.named_secrets.items()
                if await self._exists(SECRET, service.namespace, name) is False
            ]
        )

    async def lost_a_secret(self, namespace: str, memory: ServiceMemory) -> bool:
        """Return whether a Secret has vanished; the next pass then checks all of them."""
        if memory.link_secret_exists is False or memory.missing_key_secrets:
            return False  # checked in each pass
        for name in memory.secrets:
            if await self._exists(SECRET, namespace, name) is False:
                memory.secrets_checked = float("-inf")
                return True
        return False

    async def _exists(self, kind: Kind, namespace: str, name: str) -> bool | None:
        # A dry run of its creation conflicts if it exists. This needs no permission to read it.
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, "namespace": namespace},
        }
        try:
            await self._cluster.create(kind, namespace, body, dry_run=True)
        except ConflictError:
            return True
        except ClusterError as error:
            log.debug("cannot check whether %s %s exists: %s", kind.kind, name, error)
            return None
        return False


def _workload(children: Mapping[ChildKey, ChildObject], key: ChildKey) -> WorkloadState | None:
    child = children.get(key)
    if child is None or child.ownership is not Ownership.OURS or child.terminating:
        return None
    return objects.workload_of(child.object)


def _link_secret(children: Mapping[ChildKey, ChildObject], service: InferenceService) -> str:
    # The ServiceAccount records it; before, pod templates do.
    recorded = [
        children[key].object["metadata"]
        if key[0] is SERVICE_ACCOUNT
        else children[key].object["spec"]["template"]["metadata"]
        for key in (
            (SERVICE_ACCOUNT, service.name),
            (STATEFUL_SET, workload_name(service, "engine")),
            (DEPLOYMENT, workload_name(service, "frontend")),
        )
        if key in children and children[key].ownership is not Ownership.FOREIGN
    ]
    names = (metadata.get("annotations", {}).get(LINK_KEYS_ANNOTATION, "") for metadata in recorded)
    return next(filter(None, names), "")


def _is_reached(frontend: Pod, report: StatusReport | None) -> bool:
    # A frontend that has just begun need not report its demand.
    if frontend.container.state != "running":
        return True
    return report is not None and (report.demand is not None or not frontend.ready)
