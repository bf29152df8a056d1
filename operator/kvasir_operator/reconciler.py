"""Reconciles one InferenceService: observe, plan, act, write the status.

It is level-triggered and may be killed at any point. The state that it keeps between calls only saves requests.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from prometheus_client import CollectorRegistry

from kvasir_contract.reasons import Reason
from kvasir_operator.actor import Actor, PlanOutcome
from kvasir_operator.cluster.cluster_client import Cluster, NotFoundError
from kvasir_operator.cluster.events import NORMAL, WARNING, Events
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE, SECRET, STATEFUL_SET
from kvasir_operator.demand_polls import DemandPolls
from kvasir_operator.load_polls import LoadPolls
from kvasir_operator.observe.cordons import Cordons
from kvasir_operator.observe.objects import is_terminating
from kvasir_operator.observe.observed import ChildKey, Object, Observed, Refusal
from kvasir_operator.observe.service_memory import Key, ServiceMemory
from kvasir_operator.observe.service_observer import ServiceObserver
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.operator_metrics import ServiceMetrics
from kvasir_operator.plan.adapter_status import ADAPTERS_READY
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.exposure_status import EXPOSED
from kvasir_operator.plan.next_look import BLOCKED_INTERVAL_SECONDS
from kvasir_operator.plan.plan import TIME_FORMAT, Plan, make_plan
from kvasir_operator.plan.scaling_status import SCALING_ACTIVE
from kvasir_operator.plan.service_status import Status, invalid_status
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService
from kvasir_operator.spec_values import InvalidSpec
from kvasir_operator.upgrades import Upgrades

log = logging.getLogger(__name__)

STATUS_INTERVAL_SECONDS: Final = 2.0  # between two writes of a service's status
# reasons of Events about conditions, by the condition and its reason
_WARNINGS: Final = {
    (ADAPTERS_READY, Reason.MODEL_NOT_FOUND): "AdaptersNotReady",
    (EXPOSED, Reason.ROUTE_REFUSED): "NotExposed",
    (SCALING_ACTIVE, Reason.SCALE_IGNORED): Reason.SCALE_IGNORED,
    (SCALING_ACTIVE, Reason.LOAD_UNKNOWN): Reason.LOAD_UNKNOWN,
}


# its SecurityContextConstraints reject a fsGroup outside the namespace's range
_OPENSHIFT: Final = "security.openshift.io"


async def release_in(cluster: Cluster, release: Release) -> Release:
    """Return the release as it is in this cluster. Raises ClusterError."""
    return replace(release, fs_group=None) if await cluster.has_api_group(_OPENSHIFT) else release


class Reconciler:
    def __init__(
        self,
        cluster: Cluster,
        release: Release,
        events: Events,
        reports: StatusReports,
        *,
        operator_class: str = "",
        upgrades: Upgrades[Key] | None = None,
        cordons: Cordons[Key] | None = None,
        polls: DemandPolls | None = None,
        load_polls: LoadPolls | None = None,
        metrics: ServiceMetrics | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`upgrades` limits automatic upgrades; without it, no service upgrades automatically."""
        self._cluster = cluster
        self._release = release
        self._events = events
        self._operator_class = operator_class
        self._upgrades = upgrades or Upgrades[Key](0)
        self._cordons: Cordons[Key] = cordons or Cordons(lambda _: None)
        self._observer = ServiceObserver(
            cluster, reports, self._cordons, reads_nodes=release.reads_nodes, monotonic=monotonic, now=now
        )
        self._reports = reports
        self._polls = polls or DemandPolls(reports, lambda _: None)
        self._load_polls = load_polls or LoadPolls(reports, lambda _: None, monotonic=monotonic)
        self._actor = Actor(cluster, events)
        self._metrics = metrics or ServiceMetrics(CollectorRegistry())
        self._monotonic = monotonic
        self._now = now
        self._memories: dict[Key, ServiceMemory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile a service. Return the seconds after which to call again, or None. Raises ClusterError."""
        resource = await self._get(key)
        if resource is None:
            self._forget(key)
            return None
        if resource["spec"].get("operatorClass", "") != self._operator_class:
            self._forget(key)
            return None
        memory = self._memory(key, resource["metadata"]["uid"])
        previous: Status = resource.get("status") or {}
        try:
            service = self._release.parse(resource)
        except InvalidSpec as error:
            stamp = self._now().strftime(TIME_FORMAT)
            status = invalid_status(str(error), resource["metadata"]["generation"], previous, stamp)
            self._upgrades.forget(key)
            self._polls.forget(key)
            self._load_polls.forget(key)
            return await self._publish(resource, previous, status, memory)
        load = self._load_polls.history(key, previous)
        observed = (await self._observer.observe(resource, service, memory)).with_changes(load=load)
        decided = previous if memory.rollout is None else {**previous, "rollout": memory.rollout}
        plan = await self._carry_out(key, resource, service, observed, decided, memory)
        memory.rollout = plan.status.get("rollout", {})
        self._polls.follow(key, plan.polled, service.autoscaling.to_zero_after or 0.0)
        self._load_polls.follow(key, service.autoscaling, plan.scaling, load)
        written = await self._publish(resource, previous, plan.status, memory)
        # No event about this service reports that a slot for its upgrade is free.
        place = BLOCKED_INTERVAL_SECONDS if plan.upgrade_available and self._upgrades.are_automatic else None
        return min((wait for wait in (written, plan.again, place) if wait is not None), default=None)

    async def _carry_out(
        self,
        key: Key,
        resource: Object,
        service: InferenceService,
        observed: Observed,
        previous: Status,
        memory: ServiceMemory,
    ) -> Plan:
        """Execute the plan. Return a second plan, made from the outcome, with the status to write."""

        def planned() -> Plan:
            return make_plan(service, observed, previous, self._release, self._now())

        plan = planned()
        refusals = {}
        if plan.new_link_keys:
            made = await self._actor.create_link_secret(resource, service)
            if isinstance(made, Refusal):
                refusals[SECRET, f"{service.name}-link"] = made
            else:
                memory.link_secret, memory.link_secret_exists = made, True
                observed = observed.with_changes(link_secret=made, link_secret_exists=True)
                plan = planned()
        if plan.upgrade_available and self._upgrades.take(key, previous):
            observed = observed.with_changes(may_upgrade=True)
            plan = planned()
        await self._keep_refused_surge(resource, plan)
        await self._reports.set_gates({order.pod: order.closed for order in plan.gates})
        outcome = await self._actor.execute(resource, service, plan)
        if plan.scaling.change and any(kind is STATEFUL_SET for kind, _ in outcome.children):
            await self._events.record(resource, "Rescaled", plan.scaling.change)
        self._remember(memory, observed, plan, outcome, refusals)
        observed = outcome.onto(observed).with_changes(refusals=memory.refusals)
        # The decision about surge ranks was made before the StatefulSet changed.
        previous = {**previous, "rollout": plan.status.get("rollout", {})}
        plan = planned()
        self._upgrades.settle(key, plan.status)
        return plan

    async def _keep_refused_surge(self, resource: Object, plan: Plan) -> None:
        # Before a rank is deleted for lack of room: the next operator would start a surge rank in its place, and
        # it then would have none.
        stored: Status = resource.get("status") or {}
        rollout = plan.status.get("rollout", {})
        refused = rollout.get("surgeRefused")
        if stored and refused and refused != stored.get("rollout", {}).get("surgeRefused"):
            await self._actor.write_status(resource, {**stored, "rollout": rollout})

    def _remember(
        self,
        memory: ServiceMemory,
        observed: Observed,
        plan: Plan,
        outcome: PlanOutcome,
        refusals: Mapping[ChildKey, Refusal],
    ) -> None:
        # `refusals` are those before the outcome.
        attempted = {apply.key for apply in plan.applies}
        kept = {key: refusal for key, refusal in observed.refusals.items() if key in plan.held_back - attempted}
        at = self._monotonic()
        new = {key: replace(refusal, at=at) for key, refusal in {**outcome.refusals, **refusals}.items()}
        memory.refusals = {**kept, **new}
        uids = {child.uid for child in (*observed.children.values(), *outcome.children.values())}
        known = {**memory.unchanged, **outcome.unchanged}
        memory.unchanged = {uid: digest for uid, digest in known.items() if uid in uids}

    @property
    def keys(self) -> Collection[Key]:
        return [*self._memories]

    async def lost_a_secret(self, key: Key) -> bool:
        # no watch reports this
        memory = self._memories.get(key)
        return memory is not None and await self._observer.lost_a_secret(key.namespace, memory)

    def forget_all_but(self, keys: Collection[Key]) -> None:
        # a watch may have missed their deletion
        for key in [key for key in self._memories if key not in keys]:
            self._forget(key)

    # -------------------------------------------------------------------------------------------------- details

    async def _get(self, key: Key) -> Object | None:
        # None: deleted or terminating. The garbage collector deletes children.
        try:
            resource = await self._cluster.get(INFERENCE_SERVICE, key.namespace, key.name)
        except NotFoundError:
            return None
        return None if is_terminating(resource) else resource

    def _memory(self, key: Key, uid: str) -> ServiceMemory:
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = ServiceMemory(uid)
        return memory

    def _forget(self, key: Key) -> None:
        self._memories.pop(key, None)
        self._cordons.forget(key)
        self._upgrades.forget(key)
        self._polls.forget(key)
        self._load_polls.forget(key)
        self._metrics.forget(key)

    async def _publish(
        self, resource: Object, previous: Status, status: Status, memory: ServiceMemory
    ) -> float | None:
        """Write the status, or return the seconds until it may be written."""
        self._metrics.record(Key(resource["metadata"]["namespace"], resource["metadata"]["name"]), status)
        if status == previous:
            return None
        wait = memory.status_written + STATUS_INTERVAL_SECONDS - self._monotonic()
        if wait > 0:
            return wait
        await self._actor.write_status(resource, status)
        memory.status_written = self._monotonic()
        await self._announce(resource, previous, status)
        await self._warn(resource, previous, status)
        return None

    async def _announce(self, resource: Object, previous: Status, status: Status) -> None:
        before, after = condition(previous, "Ready"), condition(status, "Ready")
        if (before.get("status"), before.get("reason")) == (after["status"], after["reason"]):
            return
        name = f"{resource['metadata']['namespace']}/{resource['metadata']['name']}"
        log.info("%s: Ready=%s %s: %s", name, after["status"], after["reason"], after["message"])
        if after["reason"] in (Reason.SCALED_TO_ZERO, Reason.WAKING_UP):
            await self._events.record(resource, after["reason"], after["message"], NORMAL)
        if (after["status"] == "True") != (before.get("status") == "True"):
            reason, kind = ("Ready", NORMAL) if after["status"] == "True" else ("NotReady", WARNING)
            await self._events.record(resource, reason, after["message"], kind)

    async def _warn(self, resource: Object, previous: Status, status: Status) -> None:
        for (kind, reason), event in _WARNINGS.items():
            before, after = condition(previous, kind), condition(status, kind)
            if after.get("reason") == reason and before.get("message") != after["message"]:
                await self._events.record(resource, event, after["message"], WARNING)
