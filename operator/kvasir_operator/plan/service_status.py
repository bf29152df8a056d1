"""The status of an InferenceService, from the observed facts and the decisions.

The same facts give the same status (times are kept from the previous one while nothing changes), so it is written
only when something happened. It never runs ahead of the facts: what a controller has not seen yet is under way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvasir_contract.failure import cut
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import SERVICE
from kvasir_operator.observe.observed import Observed, Ownership, PodState
from kvasir_operator.plan.engine_rollout import SURGE_PATIENCE_SECONDS
from kvasir_operator.plan.problem import Problem, most_urgent
from kvasir_operator.plan.words import count
from kvasir_operator.resources.names import RELEASE_ANNOTATION, selector_labels, workload_name
from kvasir_operator.resources.network import url
from kvasir_operator.spec import InferenceService

Status = dict[str, Any]

CONDITIONS: Final = ("Ready", "EnginesReady", "FrontendsReady", "Progressing", "Degraded", "UpgradeAvailable")
MAX_NAMED: Final = 3
"""Pods that a message names at most; of a failure one, because its message is long."""
MAX_MESSAGE_BYTES: Final = 4096


@dataclass(frozen=True)
class Decisions:
    """What the rest of the plan decided, as far as the status shows it."""

    problems: tuple[Problem, ...] = ()
    under_way: tuple[str, ...] = ()
    surge: frozenset[int] = frozenset()
    rollout: Mapping[str, Any] = field(default_factory=dict)
    """What the next decision about the roll-out has to know of this one."""
    release: str = ""
    """The release whose templates run."""
    upgrade: str = ""
    """The release that is available and not asked for; "" if there is none."""


def service_status(
    service: InferenceService, observed: Observed, decisions: Decisions, previous: Mapping[str, Any], now: str
) -> Status:
    """`previous`: the status before, perhaps {}. `now`: RFC 3339."""
    group = _engines(service, observed, decisions)
    frontends = [member.state for member in observed.frontends]
    selector = ",".join(f"{name}={value}" for name, value in selector_labels(service, "engine").items())
    ranks = _ranks(service, observed, previous.get("engines", {}).get("ranks", ()), now)
    fields: Status = {
        "observedGeneration": observed.generation,
        "url": url(service) if _is_reachable(service, observed) else None,
        "model": service.model.served_names[0],
        "release": decisions.release or None,
        "replicas": sum(member.pod.rank not in decisions.surge for member in observed.engines),
        "selector": selector,
        "engines": {
            "desired": group.desired,
            "ready": group.ready,
            "summary": f"{group.ready}/{group.desired}",
            "restarts": sum(member.state.restarts for member in observed.engines),
            "ranks": ranks,
        },
        "frontends": {
            "desired": service.frontend.replicas,
            "ready": min(_serving(frontends), service.frontend.replicas),
            "restarts": sum(state.restarts for state in frontends),
        },
        "rollout": dict(decisions.rollout) or None,
        "conditions": _stamped(
            _conditions(service, observed, decisions, group),
            previous.get("conditions", ()),
            observed.generation,
            now,
        ),
    }
    return {name: value for name, value in fields.items() if value is not None}


def invalid_status(error: str, generation: int, previous: Mapping[str, Any], now: str) -> Status:
    """The status of a service whose spec cannot be used: nothing else is known about it."""
    message = f"{error}; nothing of the service is changed until it is corrected"
    # Running pods go on: Ready and the like keep their last value.
    conditions = [
        _Condition(
            kind,
            kind != "Progressing" and condition(previous, kind).get("status") == "True",
            Reason.INVALID_SPEC,
            message,
        )
        for kind in CONDITIONS
    ]
    stamped = _stamped(conditions, previous.get("conditions", ()), generation, now)
    return {**previous, "observedGeneration": generation, "conditions": stamped}


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of this type; {} if there is none yet."""
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == kind), {})


# ----------------------------------------------------------------------------------------------------------- ranks


def _wanted(service: InferenceService, observed: Observed) -> list[PodState]:
    """The state of every rank that there should be."""
    name = workload_name(service, "engine")
    states = {member.pod.rank: member.state for member in observed.engines}

    def missing(rank: int) -> PodState:
        pod = f"{name}-{rank}"
        if rank in observed.not_created:
            message = (
                f"the pod cannot be created ({observed.not_created[rank]}): change what forbids it, or the service"
            )
            return PodState(pod, Phase.SCHEDULING, Reason.UNSCHEDULABLE, message)
        return PodState(pod, Phase.SCHEDULING, Reason.LOADING, "no pod yet")

    return [states.get(rank) or missing(rank) for rank in range(service.engine.data_parallel_size)]


def _ranks(
    service: InferenceService, observed: Observed, previous: Sequence[Mapping[str, Any]], now: str
) -> list[Status]:
    before = {entry["rank"]: entry for entry in previous}
    states = dict(enumerate(_wanted(service, observed)))
    states |= {member.pod.rank: member.state for member in observed.engines}
    entries: list[Status] = []
    for rank, state in sorted(states.items()):
        old = before.get(rank, {})
        same = (old.get("pod"), old.get("phase")) == (state.pod, state.phase)
        entry = {
            "rank": rank,
            "pod": state.pod,
            "phase": str(state.phase),
            "progress": state.progress,
            "message": cut(state.message, _rank_message_bytes(len(states))),
            "restarts": state.restarts or "",
            "since": old.get("since", now) if same else now,
        }
        entries.append({field: value for field, value in entry.items() if value != ""})
    return entries


def _rank_message_bytes(ranks: int) -> int:
    """All messages together take 128 KiB at most, and in JSON up to six times that: etcd accepts 1.5 MiB."""
    return min(1024, max(64, 128 * 1024 // max(1, ranks)))


def _serving(states: Sequence[PodState]) -> int:
    return sum(state.ready for state in states)


# ------------------------------------------------------------------------------------------------------ conditions


@dataclass(frozen=True)
class _Condition:
    type: str
    status: bool
    reason: Reason
    message: str


@dataclass(frozen=True)
class _Group:
    """All engines, or all frontends."""

    name: str
    ready: int
    desired: int
    problem: Problem | None
    """Why some are not ready; None if all are."""

    @property
    def count(self) -> str:
        return f"{self.ready}/{self.desired} {self.name} are ready"

    def condition(self, kind: str) -> _Condition:
        if self.problem is None:
            return _Condition(kind, True, Reason.AS_DESIRED, self.count)
        return _Condition(kind, False, self.problem.reason, f"{self.count}; {self.problem.message}")


def _group(name: str, states: Sequence[PodState], desired: int) -> _Group:
    ready = min(_serving(states), desired)
    problem = None
    if ready < desired:
        problem = _worst_of(states) or Problem(Reason.LOADING, "their pods are not created yet")
    return _Group(name, ready, desired, problem)


def _engines(service: InferenceService, observed: Observed, decisions: Decisions) -> _Group:
    """A surge rank serves in the place of one that is being replaced."""
    surge = [
        member.state for member in observed.engines if member.pod.rank in decisions.surge and member.state.ready
    ]
    return _group("engines", [*_wanted(service, observed), *surge], service.engine.data_parallel_size)


def _conditions(
    service: InferenceService, observed: Observed, decisions: Decisions, engines: _Group
) -> list[_Condition]:
    frontends = _group("frontends", [member.state for member in observed.frontends], service.frontend.replicas)
    worst = _worst(service, observed, decisions, (engines, frontends))
    answers = _is_reachable(service, observed) and engines.ready > 0 and frontends.ready > 0

    reason = worst.reason if worst else Reason.AS_DESIRED
    counts = f"{engines.count}, {frontends.count}"
    return [
        _Condition("Ready", answers, reason, f"{counts}; {worst.message}" if worst else counts),
        engines.condition("EnginesReady"),
        frontends.condition("FrontendsReady"),
        _Condition(
            "Progressing",
            worst is not None and not reason.is_failure and reason is not Reason.PAUSED,
            reason,
            worst.message if worst else "everything is as desired",
        ),
        _degraded(answers, engines, reason),
        _upgrade(decisions),
    ]


def _is_reachable(service: InferenceService, observed: Observed) -> bool:
    """Whether the Service for clients exists and is ours."""
    child = observed.children.get((SERVICE, service.name))
    return child is not None and child.ownership is not Ownership.FOREIGN


def _worst(
    service: InferenceService, observed: Observed, decisions: Decisions, groups: Sequence[_Group]
) -> Problem | None:
    desired = service.engine.data_parallel_size
    leaving = sum(
        member.pod.rank >= desired and member.pod.rank not in decisions.surge for member in observed.engines
    )
    under_way = [*decisions.under_way]
    if leaving:
        under_way.append(f"{count(leaving, 'engine pod')} {'is' if leaving == 1 else 'are'} leaving")
    # A surge rank that fails holds the roll-out up, although every engine that is desired may be ready.
    surge = [
        member.state
        for member in observed.engines
        if member.pod.rank in decisions.surge
        and (member.state.phase is not Phase.SCHEDULING or member.waited >= SURGE_PATIENCE_SECONDS)
    ]
    failed = _worst_of([state for state in surge if state.reason.is_failure])
    return most_urgent(
        [
            *([_together(decisions.problems)] if decisions.problems else []),
            *([failed] if failed else []),
            *([Problem(Reason.ROLLING_OUT, "; ".join(under_way))] if under_way else []),
            *(group.problem for group in groups if group.problem is not None),
        ]
    )


def _together(problems: Sequence[Problem]) -> Problem:
    """All of them in one message, because each has to be mended; the most urgent first."""
    in_order = sorted(problems, key=lambda problem: problem.reason.urgency)
    messages = [problem.message for problem in in_order[:MAX_NAMED]]
    more = [f"and {len(in_order) - MAX_NAMED} more"] if len(in_order) > MAX_NAMED else []
    return Problem(in_order[0].reason, "; also: ".join([*messages, *more]))


def _degraded(answers: bool, engines: _Group, reason: Reason) -> _Condition:
    if not answers:
        return _Condition("Degraded", False, reason, "the service does not answer")
    if engines.problem is None:
        return _Condition("Degraded", False, reason, "no engine is missing")
    return _Condition("Degraded", True, engines.problem.reason, f"{engines.count}; {engines.problem.message}")


def _upgrade(decisions: Decisions) -> _Condition:
    if not decisions.upgrade:
        return _Condition("UpgradeAvailable", False, Reason.AS_DESIRED, "the pods run the operator's release")
    message = (
        f"the operator's release {decisions.upgrade} would change the pods, which run {decisions.release}: to roll "
        f"them, set the annotation {RELEASE_ANNOTATION}={decisions.upgrade}; the next change of the spec does it "
        "too"
    )
    return _Condition("UpgradeAvailable", True, Reason.UPGRADE_PENDING, message)


def _worst_of(states: Sequence[PodState]) -> Problem | None:
    """Return the most urgent reason, and the pods that have it."""
    unready = [state for state in states if not state.ready]
    if not unready:
        return None
    reason = min((state.reason for state in unready), key=lambda reason: reason.urgency)
    those = [state for state in unready if state.reason is reason]
    shown = 1 if reason.is_failure else MAX_NAMED
    named = "; ".join(_sentence(state) for state in those[:shown])
    return Problem(reason, named + (f" (and {len(those) - shown} more)" if len(those) > shown else ""))


def _sentence(state: PodState) -> str:
    if state.reason.is_failure:
        return f"pod {state.pod}: {state.message}"
    phase = f"{state.phase} {state.progress}".rstrip()
    return f"pod {state.pod}: {phase}" + (f" ({state.message})" if state.message else "")


def _stamped(
    conditions: Sequence[_Condition], previous: Sequence[Mapping[str, Any]], generation: int, now: str
) -> list[Status]:
    before = {entry["type"]: entry for entry in previous}
    stamped = []
    for condition in conditions:
        status = "True" if condition.status else "False"
        old = before.get(condition.type, {})
        stamped.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == status else now,
                "reason": str(condition.reason),
                "message": cut(condition.message, MAX_MESSAGE_BYTES),
            }
        )
    return stamped
