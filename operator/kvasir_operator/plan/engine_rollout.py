"""The roll-out of the engines: the size of the StatefulSet and the pods to delete now.

The decision is made again after every change; only the status keeps state between decisions. A rank is *outdated*
if its pod runs an old revision or is on a node that is being drained. With `maxSurge`, additional ranks (ordinals
from the desired size upwards) start first. An outdated rank that serves is then deleted only while a surge rank
serves in its place. If no node has room for a surge rank, at most `maxUnavailable` ranks are replaced at a time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Member, Observed, Pod, WorkloadState
from kvasir_operator.plan.words import count, verb
from kvasir_operator.spec import InferenceService, RolloutSpec

SURGE_PATIENCE_SECONDS: Final = 30.0
"""How long a surge rank may wait for a node before the roll-out continues without it."""
LOST_POD_MARGIN_SECONDS: Final = 5.0
"""How long a terminating pod must be observed on a lost node before it is force-deleted."""


@dataclass(frozen=True)
class PodDeletion:
    """A pod to delete now, with the Event that explains the deletion."""

    pod: Pod
    event: str
    """Reason of the Event."""
    why: str
    grace: int | None = None
    """Grace period in seconds; None for the pod's own."""


@dataclass(frozen=True)
class EngineRollout:
    """The next action of the engines' roll-out."""

    replicas: int
    """Replicas of the StatefulSet, including surge ranks."""
    deletions: tuple[PodDeletion, ...] = ()
    under_way: str = ""
    """A description of the roll-out for the status; "" if there is none."""
    surge_refused: str = ""
    """The revision whose roll-out continues without surge ranks; "" if there is none."""
    surge: frozenset[int] = frozenset()
    """Ranks that exist only during the roll-out."""

    @property
    def memo(self) -> dict[str, Any]:
        """The state that the next decision needs. The status keeps it."""
        surge = {"surgeFrom": min(self.surge)} if self.surge else {}
        return surge | ({"surgeRefused": self.surge_refused} if self.surge_refused else {})


def roll_engines(service: InferenceService, observed: Observed, memo: Mapping[str, Any]) -> EngineRollout:
    """Return the next action. `memo` is that of the previous decision; {} if there is none."""
    surge_refused = memo.get("surgeRefused", "")
    desired, stateful_set = service.engine.data_parallel_size, observed.stateful_set
    if stateful_set is None:
        return EngineRollout(desired)
    most = desired + service.rollout.max_surge
    # Ranks above the desired size are surge ranks only if a roll-out created them. Otherwise they are scaled down.
    surges = desired < stateful_set.replicas <= most and memo.get("surgeFrom") == desired
    if not stateful_set.is_observed:
        replicas = stateful_set.replicas if surges else desired
        return EngineRollout(replicas, (), _UNOBSERVED, surge_refused, frozenset(range(desired, replicas)))

    ranks = _Ranks.of(observed, stateful_set, desired)
    under_way = _under_way(ranks.outdated, observed.cordoned)
    if not ranks.running and (ranks.awaited == 0 or not surges):
        return EngineRollout(desired, _deletions_of(ranks.broken, observed.cordoned), under_way)
    if not under_way:
        under_way = f"{count(ranks.awaited, 'new engine pod')} {verb(ranks.awaited, 'is', 'are')} not ready yet"
    return _roll_running(service.rollout, observed, stateful_set, ranks, surge_refused, under_way)


def release_lost(observed: Observed) -> tuple[PodDeletion, ...]:
    """Return forced deletions of terminating pods on lost nodes, where no kubelet can end them.

    A pod on a live node is never force-deleted, however long it takes, because its process may still hold the GPU.
    If the process on a lost node still runs, the link distinguishes it from its successor by the incarnation.
    """
    return tuple(
        PodDeletion(member.pod, "Released", f"{member.state.message or 'its node does not respond'}", grace=0)
        for member in observed.engines
        if member.pod.terminating
        and member.state.phase is Phase.FAILED
        and member.waited >= LOST_POD_MARGIN_SECONDS
    )


_UNOBSERVED: Final = "the StatefulSet controller has not processed the new spec of the engines yet"


@dataclass(frozen=True)
class _Ranks:
    """The existing ranks below the desired size."""

    desired: int
    existing: list[Member]
    outdated: list[Member]
    broken: list[Member]
    """Outdated ranks that cannot serve: they are deleted at once."""
    running: list[Member]
    """The other outdated ranks."""
    awaited: int
    """Ranks that are neither outdated nor settled: their new pods do not serve yet."""

    @classmethod
    def of(cls, observed: Observed, stateful_set: WorkloadState, desired: int) -> "_Ranks":
        existing = [member for member in observed.engines if member.pod.rank < desired]
        outdated = [member for member in existing if _is_outdated(member, stateful_set, observed.cordoned)]
        settled = [member for member in existing if member.is_settled and member not in outdated]
        return cls(
            desired=desired,
            existing=existing,
            outdated=outdated,
            broken=[member for member in outdated if _is_broken(member)],
            running=[member for member in outdated if not _is_broken(member)],
            awaited=desired - len(settled) - len(outdated),
        )

    @property
    def all_serve(self) -> bool:
        return len(self.existing) == self.desired and all(member.serves for member in self.existing)


def _roll_running(
    rollout: RolloutSpec,
    observed: Observed,
    stateful_set: WorkloadState,
    ranks: _Ranks,
    surge_refused: str,
    under_way: str,
) -> EngineRollout:
    """Replace ranks that may serve: with surge ranks if they find room, otherwise within maxUnavailable."""
    desired = ranks.desired
    surge_size = min(rollout.max_surge, len(ranks.running) + ranks.awaited)
    surge = [member for member in observed.engines if desired <= member.pod.rank < desired + surge_size]
    stale = [member for member in surge if _is_outdated(member, stateful_set, observed.cordoned)]
    usable = [member for member in surge if member not in stale and not member.pod.terminating]
    revision = stateful_set.revision or "unknown"
    # Only ranks of an old revision may be replaced without surge ranks. Deleting a pod on a cordoned node frees no
    # room for its successor, so these pods wait until a node has room for a surge rank.
    running = [member for member in ranks.running if member.pod.node not in observed.cordoned]
    refused = (surge_size > 0 and len(running) > 0) and (
        surge_refused == revision or _has_no_room(usable, observed, desired, rollout.max_unavailable)
    )
    if refused or surge_size == 0:
        replicas, budget = desired, rollout.max_unavailable
    else:
        replicas, budget = desired + surge_size, sum(member.is_settled for member in usable)
        running = ranks.running
    # Ranks that do not serve come first, then the highest ranks.
    in_order = sorted(running, key=lambda member: (member.serves, -member.pod.rank))
    # An outdated surge rank would stand in with the wrong revision. Replace it as soon as it is not needed.
    renewed = [member for member in stale if ranks.all_serve or not member.serves]
    deletions = [*ranks.broken, *in_order[: max(0, budget - ranks.awaited)], *renewed]
    return EngineRollout(
        replicas=replicas,
        deletions=_deletions_of(deletions, observed.cordoned),
        under_way=under_way,
        surge_refused=revision if refused else "",
        surge=frozenset(range(desired, replicas)),
    )


def _is_outdated(member: Member, stateful_set: WorkloadState, cordoned: Collection[str]) -> bool:
    if member.pod.terminating:
        return False
    is_old = stateful_set.revision != "" and member.pod.revision != stateful_set.revision
    return is_old or member.pod.node in cordoned


def _is_broken(member: Member) -> bool:
    """Return whether the pod does not serve and will not recover by itself, so that deleting it loses nothing."""
    if member.serves:
        return False
    return member.state.reason.is_failure or member.state.phase in (Phase.SCHEDULING, Phase.PULLING, Phase.FAILED)


def _has_no_room(surge: Sequence[Member], observed: Observed, desired: int, max_unavailable: int) -> bool:
    """Return whether to go on without surge ranks. With maxUnavailable 0, the roll-out waits for them forever."""
    if max_unavailable == 0:
        return False
    waits = any(_cannot_be_placed(member) and member.waited >= SURGE_PATIENCE_SECONDS for member in surge)
    return waits or any(
        rank >= desired and observed.missing.get(rank, 0.0) >= SURGE_PATIENCE_SECONDS
        for rank in observed.not_created
    )


def _cannot_be_placed(member: Member) -> bool:
    """Return whether no node accepts the pod, or its volume is still attached to another pod."""
    if member.state.phase is Phase.SCHEDULING:
        return True
    return member.state.reason is Reason.VOLUME_FAILED and "Multi-Attach" in member.state.message


def _deletions_of(members: Sequence[Member], cordoned: Collection[str]) -> tuple[PodDeletion, ...]:
    return tuple(
        PodDeletion(member.pod, "Replacing", f"pod {member.pod.name} {_cause(member, cordoned)}")
        for member in members
    )


def _cause(member: Member, cordoned: Collection[str]) -> str:
    if member.pod.node in cordoned:
        return f"is on node {member.pod.node}, which is being drained"
    return "runs the old revision"


def _under_way(outdated: Sequence[Member], cordoned: Collection[str]) -> str:
    moving = sum(member.pod.node in cordoned for member in outdated)
    old = len(outdated) - moving
    parts = []
    if old:
        parts.append(f"{count(old, 'engine pod')} still {verb(old, 'runs', 'run')} the old revision")
    if moving:
        parts.append(f"{count(moving, 'engine pod')} {verb(moving, 'is', 'are')} on a node that is being drained")
    return "; ".join(parts)
