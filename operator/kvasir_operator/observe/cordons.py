"""The nodes of a service's pods that are being drained or no longer respond."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, NotFoundError
from kvasir_operator.cluster.kinds import NODE
from kvasir_operator.observe import objects
from kvasir_operator.observe.observed import Member, Object, Pod
from kvasir_operator.observe.scheduling import counts_taints, with_taints
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.resources.taints import CORDON_TAINT, tolerates

log = logging.getLogger(__name__)

LIST_SECONDS: Final = 30.0  # how long a list of all nodes is used
_DENIED: Final = (401, 403, 404)
Taints = list[Mapping[str, Any]]
KeyT = TypeVar("KeyT")


class Cordons(Generic[KeyT]):
    """The nodes that are being drained, as the watch reports them, and the services with pods on them."""

    def __init__(self, put: Callable[[KeyT], None], drain_taints: Collection[str] = objects.DRAIN_TAINTS) -> None:
        """`put` is called with the key of each service that a change of a node affects."""
        self._put = put
        self._drain_taints = frozenset(drain_taints)
        self._drains: dict[str, Taints] = {}  # by node; [] for a node that stays
        self._nodes: dict[KeyT, frozenset[str]] = {}

    def drains(self, node: Object) -> Taints:
        spec = node.get("spec", {})
        taints = [
            taint
            for taint in spec.get("taints") or ()
            if taint["key"] in self._drain_taints and taint["effect"] in ("NoSchedule", "NoExecute")
        ]
        return [*taints, CORDON_TAINT] if spec.get("unschedulable") else taints

    def node_changed(self, name: str, node: Object | None) -> None:
        taints = [] if node is None else self.drains(node)
        before = self._drains.get(name, [])
        self._drains[name] = taints
        if node is None:
            del self._drains[name]
        # another taint counts too: pods may tolerate only the first one
        if taints == before:
            return
        for key in [key for key, nodes in self._nodes.items() if name in nodes]:
            self._put(key)

    def among(self, key: KeyT, nodes: Iterable[str]) -> Mapping[str, Taints]:
        """Return the service's nodes that may be drained, including those not reported yet."""
        self._nodes[key] = frozenset(nodes)
        return {
            name: self._drains.get(name, [])
            for name in sorted(self._nodes[key])
            if name not in self._drains or self._drains[name]
        }

    def forget(self, key: KeyT) -> None:
        self._nodes.pop(key, None)


class Nodes:
    def __init__(self, cluster: Cluster, cordons: Cordons[Key], *, reads_nodes: bool) -> None:
        self._cluster = cluster
        self._cordons = cordons
        self._reads_nodes = reads_nodes
        self._listed: Sequence[Object] = ()
        self._listed_until = 0.0

    async def name_taints(self, pods: Sequence[Pod], resource_name: str, now: float) -> list[Pod]:
        """Return the pods, with names for the taints that messages of the scheduler only count."""
        unnamed = {pod.uid for pod in pods if pod.scheduled is False and counts_taints(pod.schedule_message)}
        if not unnamed or not self._reads_nodes:
            return [*pods]
        if now >= self._listed_until:
            try:
                self._listed = [_scheduling_facts(node) for node in await self._cluster.list(NODE, None)]
            except ClusterError as error:
                log.debug("cannot list nodes: %s", error)
                return [*pods]
            self._listed_until = now + LIST_SECONDS

        def named(pod: Pod) -> Pod:
            wanted = resource_name if pod.component == "engine" else ""
            return replace(pod, schedule_message=with_taints(pod, self._listed, wanted))

        return [named(pod) if pod.uid in unnamed else pod for pod in pods]

    async def lost(self, suspects: Sequence[Pod]) -> Mapping[str, str]:
        """Return the problems of the nodes of unresponsive pods, by name."""
        lost: dict[str, str] = {}
        if not self._reads_nodes:
            return lost
        for name in sorted({pod.node for pod in suspects if pod.node}):
            try:
                problem = objects.node_problem(await self._cluster.get(NODE, None, name))
            except NotFoundError:
                problem = f"node {name} no longer exists"
            except ClusterError as error:
                log.debug("cannot read node %s: %s", name, error)
                continue
            if problem:
                lost[name] = problem
        return lost

    async def drained(self, key: Key, members: Sequence[Member]) -> tuple[frozenset[str], list[Member]]:
        """Return the nodes that members should leave, and the members, with `stays` set."""
        drained: dict[str, Taints] = {}
        if not self._reads_nodes:
            return frozenset(), [*members]
        candidates = self._cordons.among(key, (member.pod.node for member in members if member.pod.node))
        for name, seen in candidates.items():
            try:
                taints = self._cordons.drains(await self._cluster.get(NODE, None, name))
            except ClusterError as error:
                log.debug("cannot read node %s: %s", name, error)
                # an overloaded API server must not end a roll-out off the node
                taints = [] if error.status in _DENIED else seen
            if taints:
                drained[name] = taints
        kept = [
            replace(member, pod=replace(member.pod, stays=stays(member.pod, drained[member.pod.node])))
            if member.pod.node in drained
            else member
            for member in members
        ]
        return frozenset(drained.keys() & {member.pod.node for member in kept if not member.pod.stays}), kept


def _scheduling_facts(node: Object) -> Object:
    # a whole node would take several kilobytes
    allocatable = node.get("status", {}).get("allocatable", {})
    return {"spec": node.get("spec", {}), "status": {"allocatable": allocatable}}


def stays(pod: Pod, taints: Sequence[Mapping[str, Any]]) -> bool:
    # its successor might return to the node
    return all(any(tolerates(toleration, taint) for toleration in pod.tolerations) for taint in taints)
