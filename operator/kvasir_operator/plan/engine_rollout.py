"""The roll-out of the engines: how many ranks the StatefulSet has meanwhile, and which pods to delete now.

Asked again after every change; nothing is remembered but what the status keeps. A rank is *outdated* if its pod
runs an old template or is on a node that is being drained. With `maxSurge`, further ranks (ordinals from the
desired size on) are started first, and outdated ranks that can serve are deleted only while surge ranks serve in
their place. Where no node takes a surge rank, at most `maxUnavailable` ranks are replaced at a time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Member, Observed, Pod, WorkloadState
from kvasir_operator.plan.words import count
from kvasir_operator.spec import InferenceService

SURGE_PATIENCE_SECONDS: Final = 30.0
"""How long a surge rank may wait for a node before the roll-out goes on without it."""
LOST_POD_MARGIN_SECONDS: Final = 5.0
"""How long a pod that is being deleted must be seen on a lost node before it is released."""


@dataclass(frozen=True)
class PodDeletion:
    pod: Pod
    event: str
    """Reason of the Event about it."""
    why: str
    grace: int | None = None
    """Seconds; None: the pod's own."""


@dataclass(frozen=True)
class EngineRollout:
    replicas: int
    """Of the StatefulSet, surge ranks included."""
    deletions: tuple[PodDeletion, ...] = ()
    under_way: str = ""
    """The roll-out in words, for the status; "" without one."""
    surge_refused: str = ""
    """The revision whose roll-out goes on without surge ranks; "" if none does."""
    surge: frozenset[int] = frozenset()
    """Ranks that are there for the time of the roll-out only."""

    @property
    def memo(self) -> dict[str, Any]:
        """What the next decision has to know of this one; the status keeps it."""
        surge = {"surgeFrom": min(self.surge)} if self.surge else {}
        return surge | ({"surgeRefused": self.surge_refused} if self.surge_refused else {})


def roll_engines(service: InferenceService, observed: Observed, memo: Mapping[str, Any]) -> EngineRollout:
    """`memo`: of the decision before; {} if there is none."""
    surge_refused = memo.get("surgeRefused", "")
    desired, stateful_set = service.engine.data_parallel_size, observed.stateful_set
    if stateful_set is None:
        return EngineRollout(desired)
    most = desired + service.rollout.max_surge
    # Ranks beyond the desired ones are surge ranks only if a roll-out made them: else they leave.
    surges = desired < stateful_set.replicas <= most and memo.get("surgeFrom") == desired
    if not stateful_set.is_observed:
        replicas = stateful_set.replicas if surges else desired
        return EngineRollout(replicas, (), _UNOBSERVED, surge_refused, frozenset(range(desired, replicas)))

    ranks = [member for member in observed.engines if member.pod.rank < desired]
    outdated = [member for member in ranks if _is_outdated(member, stateful_set, observed.cordoned)]
    broken = [member for member in outdated if _is_broken(member)]
    running = [member for member in outdated if member not in broken]
    current = [member for member in ranks if member.is_settled and member not in outdated]
    replaced = desired - len(current) - len(outdated)
    under_way = _words(outdated, observed.cordoned)
    if not running and (replaced == 0 or not surges):
        return EngineRollout(desired, _replace(broken, observed.cordoned), under_way)

    surge_size = min(service.rollout.max_surge, len(running) + replaced)
    surge = [member for member in observed.engines if desired <= member.pod.rank < desired + surge_size]
    stale = [member for member in surge if _is_outdated(member, stateful_set, observed.cordoned)]
    usable = [member for member in surge if member not in stale and not member.pod.terminating]
    revision = stateful_set.revision or "unknown"
    # Only a roll-out goes on without surge ranks. The place that a pod on a cordoned node leaves takes no pod, so
    # nothing would be won by its deletion: the surge rank waits until some node has room.
    old = [member for member in running if member.pod.node not in observed.cordoned]
    refused = (surge_size > 0 and len(old) > 0) and (
        surge_refused == revision or _has_no_room(usable, observed, desired, service.rollout.max_unavailable)
    )
    if refused or surge_size == 0:
        replicas, budget = desired, service.rollout.max_unavailable
        running = old
    else:
        replicas, budget = desired + surge_size, sum(member.is_settled for member in usable)
    # Ranks that do not serve at the moment go first; of the others the highest.
    in_order = sorted(running, key=lambda member: (member.serves, -member.pod.rank))
    # A surge rank of an older template is renewed when it is not needed: it would vouch for the wrong template.
    complete = all(member.serves for member in ranks) and len(ranks) == desired
    renewed = [member for member in stale if complete or not member.serves]
    return EngineRollout(
        replicas=replicas,
        deletions=_replace([*broken, *in_order[: max(0, budget - replaced)], *renewed], observed.cordoned),
        under_way=under_way or f"{count(replaced, 'replaced engine pod')} not ready yet",
        surge_refused=revision if refused else "",
        surge=frozenset(range(desired, replicas)),
    )


def release_lost(observed: Observed) -> tuple[PodDeletion, ...]:
    """Pods of lost nodes that are being deleted: no kubelet is left to end them, so their names are freed.

    A pod on a node that lives is never forced, however long it takes: its process may still hold the GPU. Should a
    process on a lost node still run, the link tells it from its successor by the incarnation.
    """
    return tuple(
        PodDeletion(member.pod, "Released", f"{member.state.message or 'its node does not answer'}", grace=0)
        for member in observed.engines
        if member.pod.terminating
        and member.state.phase is Phase.FAILED
        and member.waited >= LOST_POD_MARGIN_SECONDS
    )


_UNOBSERVED: Final = "the StatefulSet of the engines has a new spec that its controller has not seen yet"


def _is_outdated(member: Member, stateful_set: WorkloadState, cordoned: Collection[str]) -> bool:
    if member.pod.terminating:
        return False
    is_old = stateful_set.revision != "" and member.pod.revision != stateful_set.revision
    return is_old or member.pod.node in cordoned


def _is_broken(member: Member) -> bool:
    """Whether the pod cannot serve and would not by itself: nothing is lost by its deletion."""
    if member.serves:
        return False
    return member.state.reason.is_failure or member.state.phase in (Phase.SCHEDULING, Phase.PULLING, Phase.FAILED)


def _has_no_room(surge: Sequence[Member], observed: Observed, desired: int, max_unavailable: int) -> bool:
    """Whether the roll-out must go on without surge ranks. With maxUnavailable 0 it waits for them for ever."""
    if max_unavailable == 0:
        return False
    waits = any(_cannot_be_placed(member) and member.waited >= SURGE_PATIENCE_SECONDS for member in surge)
    return waits or any(
        rank >= desired and observed.missing.get(rank, 0.0) >= SURGE_PATIENCE_SECONDS
        for rank in observed.not_created
    )


def _cannot_be_placed(member: Member) -> bool:
    """Whether no node takes the pod, or its volume is attached to another pod and to nothing else at a time."""
    if member.state.phase is Phase.SCHEDULING:
        return True
    return member.state.reason is Reason.VOLUME_FAILED and "Multi-Attach" in member.state.message


def _replace(members: Sequence[Member], cordoned: Collection[str]) -> tuple[PodDeletion, ...]:
    return tuple(
        PodDeletion(member.pod, "Replacing", f"pod {member.pod.name} {_cause(member, cordoned)}")
        for member in members
    )


def _cause(member: Member, cordoned: Collection[str]) -> str:
    if member.pod.node in cordoned:
        return f"is on node {member.pod.node}, which is being drained"
    return "runs an old template"


def _words(outdated: Sequence[Member], cordoned: Collection[str]) -> str:
    moving = sum(member.pod.node in cordoned for member in outdated)
    old = len(outdated) - moving
    words = []
    if old:
        words.append(f"{count(old, 'engine pod')} {'runs' if old == 1 else 'run'} an old template")
    if moving:
        words.append(
            f"{count(moving, 'engine pod')} {'is' if moving == 1 else 'are'} on a node that is being drained"
        )
    return "; ".join(words)
