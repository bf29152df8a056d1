"""The data-parallel ranks of the engines, each with its pods and one state.

The `engine.nodes` pods of a rank serve only together. The first, the leader, has the link to the frontends. The
ordinals are rank · nodes + member.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import FAILURES, Reason
from kvasir_operator.observe.observed import Member, Observed, PodState, is_settled
from kvasir_operator.resources.names import workload_name
from kvasir_operator.spec import InferenceService

PENDING: Final = (Phase.SCHEDULING, Phase.PULLING)  # without a running container

_FAILURES: Final = frozenset(FAILURES)
_NO_ROOM: Final = (Reason.UNSCHEDULABLE, Reason.INSUFFICIENT_GPU)


@dataclass(frozen=True)
class EngineRank:
    number: int
    leader: str  # pod name; the pod may be missing
    pods: tuple[Member, ...]  # by ordinal
    missing: tuple[int, ...]
    state: PodState  # the leader's, or that of a member that keeps the rank from serving
    waited: float  # seconds in that state, as observed
    without_room: float  # longest wait of a pod for room, in seconds

    @property
    def remaining(self) -> list[Member]:
        return [member for member in self.pods if not member.pod.terminating]

    @property
    def has_one_revision(self) -> bool:
        return len({member.pod.revision for member in self.remaining}) <= 1

    @property
    def is_whole(self) -> bool:
        return not self.missing and len(self.remaining) == len(self.pods) and self.has_one_revision

    @property
    def serves(self) -> bool:
        return self.state.ready and self.is_whole

    @property
    def is_settled(self) -> bool:
        # connected to the frontends, so that another engine may stop
        return self.serves and is_settled(self.pods[0].linked, self.waited)

    @property
    def restarts(self) -> int:
        return sum(member.state.restarts for member in self.pods)


def engine_ranks(service: InferenceService, observed: Observed) -> list[EngineRank]:
    """Return all desired ranks and all others that have a pod, by number."""
    nodes = service.engine.nodes
    pods = {member.pod.ordinal: member for member in observed.engines}
    numbers = {*range(service.engine.data_parallel_size), *(ordinal // nodes for ordinal in pods)}
    return [_rank(service, observed, pods, number) for number in sorted(numbers)]


def not_created_ranks(service: InferenceService, observed: Observed) -> dict[int, str]:
    """Return why a pod cannot be created, by rank."""
    return {ordinal // service.engine.nodes: why for ordinal, why in observed.not_created.items()}


def _rank(service: InferenceService, observed: Observed, pods: Mapping[int, Member], number: int) -> EngineRank:
    nodes, name = service.engine.nodes, workload_name(service, "engine")
    ordinals = range(number * nodes, (number + 1) * nodes)
    members = {ordinal: pods[ordinal] for ordinal in ordinals if ordinal in pods}
    states = [
        (members[ordinal].state, members[ordinal].waited)
        if ordinal in members
        else (_missing(f"{name}-{ordinal}", observed.not_created.get(ordinal)), observed.missing.get(ordinal, 0.0))
        for ordinal in ordinals
    ]
    decisive = _decisive([state for state, _ in states])
    state, waited = states[decisive]
    if nodes > 1 and _has_no_room(state) and ordinals[decisive] in members:
        state = replace(state, message=f"rank {number} waits for room for all of its {nodes} pods: {state.message}")
    elif decisive > 0:
        state = _named(state, f"member {decisive} of rank {number}")
    return EngineRank(
        number=number,
        leader=f"{name}-{ordinals[0]}",
        pods=tuple(members.values()),
        missing=tuple(ordinal for ordinal in ordinals if ordinal not in members),
        state=state,
        waited=waited,
        without_room=max((seconds for state, seconds in states if _has_no_room(state)), default=0.0),
    )


def _has_no_room(state: PodState) -> bool:
    return state.phase is Phase.SCHEDULING and state.reason in _NO_ROOM


def _missing(pod: str, why: str | None) -> PodState:
    if why is None:
        return PodState(pod, Phase.SCHEDULING, Reason.LOADING, "the pod does not exist yet")
    message = (
        f"the pod cannot be created ({why}): change the quota or policy that forbids it, or change the "
        "InferenceService"
    )
    return PodState(pod, Phase.SCHEDULING, Reason.UNSCHEDULABLE, message)


def _decisive(states: Sequence[PodState]) -> int:
    """Return the index of the rank's state: a failure, a pod that leaves or waits, or the leader."""
    if len(states) == 1:
        return 0

    def order(index: int) -> tuple[int, int, int]:
        state = states[index]
        if state.reason in _FAILURES:
            return 0, state.reason.urgency, index
        if state.phase is Phase.DRAINING:
            return 1, 0, index
        if state.phase in PENDING:
            return 2, PENDING.index(state.phase), index
        return 3, 0, index

    return min(range(len(states)), key=order)


def _named(state: PodState, member: str) -> PodState:
    message = f"{member}: {state.message}" if state.message else member
    return replace(state, message=message)
