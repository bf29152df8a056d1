"""The status of an InferenceService: a pure function of what reconcile.py has observed.

The same observation gives the same status (times are kept from the previous one while nothing changes), so it is
written only when something happened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvasir_operator.pods import Phase, PodState
from kvasir_operator.reasons import FAILURES, Reason, rank_of
from kvasir_operator.resources.names import selector_labels, workload_name
from kvasir_operator.resources.network import url
from kvasir_operator.spec import InferenceService

Status = dict[str, Any]

_NAMED: Final = 3
"""Pods that a message names at most; of a failure one, because its message is long."""


@dataclass(frozen=True)
class Problem:
    """Something about the children, or their pods, that is not as it should be."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Observation:
    generation: int
    ranks: Mapping[int, PodState]
    """Engine pods that there are, those of ranks that leave included."""
    frontends: Sequence[PodState]
    problems: Sequence[Problem]
    """With children that could not be applied."""
    reachable: bool
    """Whether the Service for clients is there and ours."""
    rolling: str
    """Which rollout is under way, in words; empty if none is."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """By rank, why its pod cannot be made."""


def service_status(service: InferenceService, seen: Observation, previous: Mapping[str, Any], now: str) -> Status:
    """`previous`: the status before, perhaps {}. `now`: RFC 3339."""
    desired = service.engine.data_parallel_size
    ready = _ready(_wanted(service, seen))
    selector = ",".join(f"{name}={value}" for name, value in selector_labels(service, "engine").items())
    return {
        "observedGeneration": seen.generation,
        "url": url(service),
        "model": service.model.served_names[0],
        "replicas": len(seen.ranks),
        "selector": selector,
        "engines": {
            "desired": desired,
            "ready": ready,
            "summary": f"{ready}/{desired}",
            "ranks": _ranks(service, seen, previous.get("engines", {}).get("ranks", ()), now),
        },
        "frontends": {"desired": service.frontend.replicas, "ready": _ready(seen.frontends)},
        "conditions": _stamped(_conditions(service, seen), previous.get("conditions", ()), seen.generation, now),
    }


def refused_status(error: str, generation: int, previous: Mapping[str, Any], now: str) -> Status:
    """Of a service whose spec cannot be read: nothing is known of it but what was."""
    message = f"{error}; until it is corrected nothing of the service is changed"
    conditions = [_Condition(kind, False, Reason.INVALID_SPEC, message) for kind in _KINDS]
    stamped = _stamped(conditions, previous.get("conditions", ()), generation, now)
    return {**previous, "observedGeneration": generation, "conditions": stamped}


def ready_condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """{} where there is none yet."""
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == "Ready"), {})


# ----------------------------------------------------------------------------------------------------------- ranks


def _wanted(service: InferenceService, seen: Observation) -> list[PodState]:
    """The state of every rank that there should be."""
    name = workload_name(service, "engine")

    def missing(rank: int) -> PodState:
        pod = f"{name}-{rank}"
        if rank in seen.refused:
            message = f"it cannot be made ({seen.refused[rank]}): change what forbids it, or the service"
            return PodState(pod, Phase.SCHEDULING, Reason.UNSCHEDULABLE, message)
        return PodState(pod, Phase.SCHEDULING, Reason.LOADING, "no pod yet")

    return [seen.ranks.get(rank) or missing(rank) for rank in range(service.engine.data_parallel_size)]


def _ranks(
    service: InferenceService, seen: Observation, previous: Sequence[Mapping[str, Any]], now: str
) -> list[Status]:
    before = {entry["rank"]: entry for entry in previous}
    states = dict(enumerate(_wanted(service, seen))) | dict(seen.ranks)
    entries: list[Status] = []
    for rank, state in sorted(states.items()):
        old = before.get(rank, {})
        same = (old.get("pod"), old.get("phase")) == (state.pod, state.phase)
        entry = {
            "rank": rank,
            "pod": state.pod,
            "phase": str(state.phase),
            "progress": state.progress,
            "message": state.message,
            "since": old.get("since", now) if same else now,
        }
        entries.append({field: value for field, value in entry.items() if value != ""})
    return entries


def _ready(states: Sequence[PodState]) -> int:
    return sum(state.ready for state in states)


# ------------------------------------------------------------------------------------------------------ conditions


_KINDS: Final = ("Ready", "EnginesReady", "FrontendsReady", "Progressing", "Degraded")


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
    problem = None
    if _ready(states) < desired:
        problem = _worst(states) or Problem(Reason.LOADING, "their pods are not made yet")
    return _Group(name, _ready(states), desired, problem)


def _conditions(service: InferenceService, seen: Observation) -> list[_Condition]:
    engines = _group("engines", _wanted(service, seen), service.engine.data_parallel_size)
    frontends = _group("frontends", seen.frontends, service.frontend.replicas)
    worst = _worst_of(seen, engines, frontends)
    answers = seen.reachable and engines.ready > 0 and frontends.ready > 0

    reason = worst.reason if worst else Reason.AS_DESIRED
    counts = f"{engines.count}, {frontends.count}"
    detail = f"{counts}; {worst.message}" if worst else counts
    return [
        _Condition("Ready", answers, reason, detail),
        engines.condition("EnginesReady"),
        frontends.condition("FrontendsReady"),
        _Condition(
            "Progressing",
            worst is not None and reason not in FAILURES,
            reason,
            worst.message if worst else "everything is as desired",
        ),
        _degraded(answers, engines, reason),
    ]


def _worst_of(seen: Observation, engines: _Group, frontends: _Group) -> Problem | None:
    """What deserves most to be told; of equals the first."""
    leaving = sum(rank >= engines.desired for rank in seen.ranks)
    rolling = seen.rolling or (f"{leaving} engine pods leave" if leaving else "")
    problems = [
        *seen.problems,
        *([Problem(Reason.ROLLING_OUT, rolling)] if rolling else []),
        *(group.problem for group in (engines, frontends) if group.problem is not None),
    ]
    return min(problems, key=lambda problem: rank_of(problem.reason), default=None)


def _degraded(answers: bool, engines: _Group, reason: Reason) -> _Condition:
    if not answers:
        return _Condition("Degraded", False, reason, "the service does not answer")
    if engines.problem is None:
        return _Condition("Degraded", False, reason, "no engine is missing")
    return _Condition("Degraded", True, engines.problem.reason, f"{engines.count}; {engines.problem.message}")


def _worst(states: Sequence[PodState]) -> Problem | None:
    """The reason that deserves it most, and the pods that have it."""
    unready = [state for state in states if not state.ready]
    if not unready:
        return None
    reason = min((state.reason for state in unready), key=rank_of)
    those = [state for state in unready if state.reason == reason]
    shown = 1 if reason in FAILURES else _NAMED
    named = "; ".join(_sentence(state) for state in those[:shown])
    return Problem(reason, named + (f" (and {len(those) - shown} more)" if len(those) > shown else ""))


def _sentence(state: PodState) -> str:
    phase = f"{state.phase} {state.progress}".rstrip()
    if state.reason in FAILURES:
        return f"pod {state.pod}: {state.message}"
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
                "message": condition.message[:32768],
            }
        )
    return stamped
