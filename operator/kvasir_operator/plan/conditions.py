"""The conditions of an InferenceService, with the reason and message of each. `Reason.urgency` orders the reasons.

Reconciling and Stalled are for kstatus (Flux, Helm, kpt).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from kvasir_contract.endpoints import OPS_PORT
from kvasir_contract.failure import cut
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import SERVICE
from kvasir_operator.observe.engine_ranks import EngineRank
from kvasir_operator.observe.observed import Observed, Ownership, PodState
from kvasir_operator.plan.load_scaling import LoadScaling
from kvasir_operator.plan.problem import (
    MAX_NAMED,
    Problem,
    count,
    most_urgent,
    most_urgent_of_pods,
    together,
    verb,
)
from kvasir_operator.plan.zero import ZeroDecision
from kvasir_operator.resources.names import RELEASE_ANNOTATION
from kvasir_operator.resources.pinning import MAX_TEMPLATE_BYTES
from kvasir_operator.spec import InferenceService

CONDITIONS: Final = (
    *("Ready", "EnginesReady", "FrontendsReady", "Progressing", "Degraded", "UpgradeAvailable"),
    *("Reconciling", "Stalled"),
)
STALLED_SECONDS: Final = 30.0  # Stalled ends the wait of a tool, so a failure must last so long
MAX_MESSAGE_BYTES: Final = 4096
# in EnginesReady of engines with several pods
UNENCRYPTED: Final = "; the pods of an engine exchange tensors without encryption"


# until something outside changes
_STEADY: Final = (Reason.PAUSED, Reason.FRONTENDS_UNREACHABLE, Reason.SCALED_TO_ZERO)


@dataclass(frozen=True)
class Decisions:
    problems: tuple[Problem, ...] = ()
    under_way: tuple[str, ...] = ()
    surge: frozenset[int] = frozenset()
    rollout: Mapping[str, Any] = field(default_factory=dict)  # state for the next plan
    release: str = ""  # that of the running pod templates
    upgrade: str = ""  # available but not requested; "" if none
    unpinned: tuple[str, ...] = ()  # workloads with pod templates too long to keep
    zero: ZeroDecision = field(default_factory=ZeroDecision)
    scaling: LoadScaling = field(default_factory=LoadScaling)
    added: tuple["Condition", ...] = ()  # for what only some services have


@dataclass(frozen=True)
class Condition:
    type: str
    status: bool | None  # None: Unknown
    reason: Reason
    message: str


@dataclass(frozen=True)
class PodGroup:
    name: str
    ready: int
    desired: int
    problem: Problem | None  # None if all are ready
    note: str = ""  # at the end of the message in any case

    @property
    def count(self) -> str:
        return f"{self.ready}/{self.desired} {self.name} are ready"

    def condition(self, kind: str) -> Condition:
        if self.problem is None:
            return Condition(kind, True, Reason.AS_DESIRED, self.count + self.note)
        return Condition(kind, False, self.problem.reason, f"{self.count}; {self.problem.message}{self.note}")


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == kind), {})


def engine_group(service: InferenceService, ranks: Sequence[EngineRank], decisions: Decisions) -> PodGroup:
    # a ready surge rank replaces an outdated one
    desired = service.engine.data_parallel_size
    states = [rank.state for rank in ranks if rank.number < desired]
    surge = [rank.state for rank in ranks if rank.number in decisions.surge and rank.state.ready]
    group = _group("engines", [*states, *surge], desired)
    return replace(group, note=UNENCRYPTED) if service.engine.nodes > 1 else group


def service_conditions(
    service: InferenceService,
    observed: Observed,
    ranks: Sequence[EngineRank],
    decisions: Decisions,
    engines: PodGroup,
) -> list[Condition]:
    """Return all conditions but those of `gitops_conditions`, in the order of CONDITIONS."""
    frontends = _group("frontends", [member.state for member in observed.frontends], service.frontend.replicas)
    worst = _most_urgent_problem(service, ranks, decisions, (engines, frontends))
    reason = worst.reason if worst else Reason.AS_DESIRED
    # the frontends hold requests until an engine is ready
    holds = (decisions.zero.at_zero and not service.paused) or reason is Reason.WAKING_UP
    answers = is_reachable(service, observed) and (engines.ready > 0 or holds) and frontends.ready > 0
    counts = f"{engines.count}, {frontends.count}"
    return [
        Condition("Ready", answers, reason, f"{counts}; {worst.message}" if worst else counts),
        engines.condition("EnginesReady"),
        frontends.condition("FrontendsReady"),
        Condition(
            "Progressing",
            worst is not None and not reason.is_failure and reason not in _STEADY,
            reason,
            worst.message if worst else "everything is as desired",
        ),
        _degraded(answers, engines, reason),
        _upgrade(service, decisions),
    ]


def gitops_conditions(
    found: Sequence[Condition], previous: Mapping[str, Any], now: datetime
) -> tuple[Condition, Condition]:
    """Return Reconciling and Stalled. `previous` is the current status or {}."""
    progressing = next(each for each in found if each.type == "Progressing")
    reason, message = progressing.reason, progressing.message
    before = condition(previous, "Stalled")
    stalled: bool | None = False
    if reason.is_failure:
        lasts = before.get("status") == "Unknown" and _seconds_since(before, now) >= STALLED_SECONDS
        stalled = True if lasts or before.get("status") == "True" else None
    reconciling = bool(progressing.status) or stalled is None
    return Condition("Reconciling", reconciling, reason, message), Condition("Stalled", stalled, reason, message)


def seconds_until_stalled(status: Mapping[str, Any], now: datetime) -> float | None:
    """Return the seconds until Stalled becomes true if nothing changes, or None."""
    stalled = condition(status, "Stalled")
    if stalled.get("status") != "Unknown":
        return None
    return max(1.0, STALLED_SECONDS - _seconds_since(stalled, now))


def _seconds_since(entry: Mapping[str, Any], now: datetime) -> float:
    return (now - datetime.fromisoformat(entry["lastTransitionTime"])).total_seconds()


def is_reachable(service: InferenceService, observed: Observed) -> bool:
    child = observed.children.get((SERVICE, service.name))
    return child is not None and child.ownership is not Ownership.FOREIGN


def serving(states: Sequence[PodState]) -> int:
    return sum(state.ready for state in states)


def stamped(
    conditions: Sequence[Condition], previous: Sequence[Mapping[str, Any]], generation: int, now: str
) -> list[dict[str, Any]]:
    before = {entry["type"]: entry for entry in previous}
    entries = []
    for condition in conditions:
        status = "Unknown" if condition.status is None else str(condition.status)
        old = before.get(condition.type, {})
        entries.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == status else now,
                "reason": str(condition.reason),
                "message": cut(condition.message, MAX_MESSAGE_BYTES),
            }
        )
    return entries


def _group(name: str, states: Sequence[PodState], desired: int) -> PodGroup:
    ready = min(serving(states), desired)
    problem = None
    if ready < desired:
        problem = most_urgent_of_pods(states) or Problem(Reason.LOADING, "the pods do not exist yet")
    return PodGroup(name, ready, desired, problem)


def _most_urgent_problem(
    service: InferenceService, ranks: Sequence[EngineRank], decisions: Decisions, groups: Sequence[PodGroup]
) -> Problem | None:
    desired = service.engine.data_parallel_size
    leaving = sum(len(rank.pods) for rank in ranks if rank.number >= desired and rank.number not in decisions.surge)
    under_way = [*decisions.under_way]
    if leaving:
        under_way.append(f"{count(leaving, 'engine pod')} {verb(leaving, 'is', 'are')} being removed")
    # a failed surge rank delays the roll-out even if every desired engine is ready
    surge = [rank.state for rank in ranks if rank.number in decisions.surge and _is_overdue(service, rank)]
    failed = most_urgent_of_pods([state for state in surge if state.reason.is_failure])
    return most_urgent(
        [
            *([together(decisions.problems)] if decisions.problems else []),
            *([failed] if failed else []),
            *([Problem(Reason.ROLLING_OUT, "; ".join(under_way))] if under_way else []),
            *(group.problem for group in groups if group.problem is not None),
            *_because_of_zero(decisions.zero, groups[0]),
        ]
    )


def _because_of_zero(zero: ZeroDecision, engines: PodGroup) -> list[Problem]:
    if zero.at_zero:
        return [Problem(Reason.SCALED_TO_ZERO, "no requests came for a while: the next one starts the engines")]
    hidden = _hidden_demand(zero.unreachable) if zero.unreachable else ""
    if zero.waking:
        why = "a request came at zero and waits for the engines"
        if hidden:
            why = f"{Reason.FRONTENDS_UNREACHABLE}: {hidden}"
        state = "" if engines.problem is None else f"; {engines.problem.message}"
        return [Problem(Reason.WAKING_UP, why + state)]
    return [Problem(Reason.FRONTENDS_UNREACHABLE, hidden)] if hidden else []


def _hidden_demand(frontends: Sequence[str]) -> str:
    named = ", ".join(frontends[:MAX_NAMED])
    more = f" and {len(frontends) - MAX_NAMED} more" if len(frontends) > MAX_NAMED else ""
    return (
        f"the operator gets no report of demand from {named}{more} on port {OPS_PORT}, so engines run although no "
        "requests may come: allow plain HTTP to this port from the operator's namespace in network policies and in "
        "the service mesh"
    )


def _is_overdue(service: InferenceService, surge: EngineRank) -> bool:
    return bool(surge.pods) and (
        surge.state.phase is not Phase.SCHEDULING or surge.waited >= service.rollout.surge_timeout
    )


def _degraded(answers: bool, engines: PodGroup, reason: Reason) -> Condition:
    if not answers:
        return Condition("Degraded", False, reason, "the service does not answer requests")
    if reason is Reason.WAKING_UP:
        return Condition("Degraded", False, reason, "requests wait for the first engine")
    if engines.problem is None:
        return Condition("Degraded", False, reason, "all engines are ready")
    return Condition("Degraded", True, engines.problem.reason, f"{engines.count}; {engines.problem.message}")


def _upgrade(service: InferenceService, decisions: Decisions) -> Condition:
    unpinned = ""
    if decisions.unpinned:
        unpinned = (
            f"; the pod template of {' and of '.join(decisions.unpinned)} is longer than "
            f"{MAX_TEMPLATE_BYTES // 1024} KiB, so an upgrade of the operator replaces its pods without a request: "
            "move long values of pod.env to a ConfigMap"
        )
    if not decisions.upgrade:
        what = "the pods run the operator's release"
        return Condition("UpgradeAvailable", False, Reason.AS_DESIRED, what + unpinned)
    of = "of the operator" if service.applied is None else f"of operator and profile {service.applied.name}"
    message = (
        f"release {decisions.upgrade} {of} would change the pods, which run release "
        f"{decisions.release}: set the annotation {RELEASE_ANNOTATION}={decisions.upgrade} to "
        "roll it out; a change of the spec that replaces the pods rolls it out too"
    )
    return Condition("UpgradeAvailable", True, Reason.UPGRADE_PENDING, message + unpinned)
