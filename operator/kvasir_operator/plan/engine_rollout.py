"""The roll-out of the engines: the size of the StatefulSet and the pods to delete now.

A rank is *outdated* if one of its pods runs an old revision or is on a drained node. With `maxSurge`, additional
ranks start first, and each stands in for one outdated rank that is deleted. If no node has room for them, at most
`maxUnavailable` ranks are replaced at a time.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.engine_ranks import PENDING, EngineRank
from kvasir_operator.observe.observed import Observed, Pod
from kvasir_operator.plan.problem import count, verb
from kvasir_operator.spec import InferenceService


@dataclass(frozen=True)
class PodDeletion:
    pod: Pod
    event: str
    why: str
    grace: int | None = None  # seconds; None for the pod's own


@dataclass(frozen=True)
class EngineRollout:
    ranks: int  # of the StatefulSet, with surge ranks
    deletions: tuple[PodDeletion, ...] = ()
    under_way: str = ""  # for the status; "" without a roll-out
    surge_refused: str = ""  # the revision that continues without surge ranks
    surge: frozenset[int] = frozenset()  # ranks that exist only during the roll-out

    @property
    def memo(self) -> dict[str, Any]:
        surge = {"surgeFrom": min(self.surge)} if self.surge else {}
        return surge | ({"surgeRefused": self.surge_refused} if self.surge_refused else {})


def roll_engines(
    service: InferenceService, observed: Observed, all_ranks: Sequence[EngineRank], memo: Mapping[str, Any]
) -> EngineRollout:
    """Return the next action. `memo` is that of the previous decision, or {}."""
    surge_refused = memo.get("surgeRefused", "")
    desired, stateful_set = service.engine.data_parallel_size, observed.stateful_set
    if stateful_set is None:
        return EngineRollout(desired)
    most = desired + service.rollout.max_surge
    present = math.ceil(stateful_set.replicas / service.engine.nodes)
    # ranks above the desired size, unless a roll-out created them, are scaled down
    surges = desired < present <= most and memo.get("surgeFrom") == desired
    if not stateful_set.is_observed:
        kept = present if surges else desired
        under_way = _UNOBSERVED if stateful_set.pods else ""  # the first pods are loading, not rolled out
        return EngineRollout(kept, (), under_way, surge_refused, frozenset(range(desired, kept)))

    template = _Template(stateful_set.revision, observed.cordoned)
    ranks = _Ranks.of(service, all_ranks, template)
    under_way = _under_way(ranks.outdated, template)
    if not ranks.running and (ranks.awaited == 0 or not surges):
        return EngineRollout(desired, _deletions_of(ranks.broken, template), under_way)
    if not under_way:
        what = "new engine pod" if service.engine.nodes == 1 else "new engine"
        under_way = f"{count(ranks.awaited, what)} {verb(ranks.awaited, 'is', 'are')} not ready yet"
    return _roll_running(service, observed, ranks, template, surge_refused, under_way)


_UNOBSERVED: Final = "the StatefulSet controller has not processed the new spec of the engines yet"


@dataclass(frozen=True)
class _Template:
    revision: str
    cordoned: Collection[str]

    def is_left_by(self, pod: Pod) -> bool:
        return (self.revision != "" and pod.revision != self.revision) or pod.leaves(self.cordoned)

    def outdated(self, rank: EngineRank) -> list[Pod]:
        return [member.pod for member in rank.remaining if self.is_left_by(member.pod)]


@dataclass(frozen=True)
class _Ranks:
    existing: list[EngineRank]
    outdated: list[EngineRank]
    broken: list[EngineRank]  # outdated and cannot serve: deleted at once
    running: list[EngineRank]
    awaited: int  # not outdated, but the new pods do not serve yet
    surplus: list[EngineRank]  # from the desired size upwards
    halves: list[EngineRank]  # some pods have no node; surge ranks may take their room
    all_serve: bool

    @classmethod
    def of(cls, service: InferenceService, ranks: Sequence[EngineRank], template: _Template) -> "_Ranks":
        desired = service.engine.data_parallel_size
        present = [rank for rank in ranks if rank.pods]
        existing = [rank for rank in present if rank.number < desired]
        outdated = [rank for rank in existing if template.outdated(rank)]
        numbers = {rank.number for rank in outdated}
        settled = [rank for rank in existing if rank.number not in numbers and rank.is_settled]
        return cls(
            existing=existing,
            outdated=outdated,
            broken=[rank for rank in outdated if _is_broken(rank)],
            running=[rank for rank in outdated if not _is_broken(rank)],
            awaited=desired - len(settled) - len(outdated),
            surplus=[rank for rank in present if rank.number >= desired],
            halves=[rank for rank in existing if rank.number not in numbers and _is_half(rank)],
            all_serve=len(existing) == desired and all(rank.serves for rank in existing),
        )


def _roll_running(
    service: InferenceService,
    observed: Observed,
    ranks: _Ranks,
    template: _Template,
    surge_refused: str,
    under_way: str,
) -> EngineRollout:
    desired, rollout = service.engine.data_parallel_size, service.rollout
    surge_size = min(rollout.max_surge, len(ranks.running) + ranks.awaited)
    surge = [rank for rank in ranks.surplus if rank.number < desired + surge_size]
    stale = [rank for rank in surge if template.outdated(rank)]
    usable = [rank for rank in surge if rank not in stale and len(rank.remaining) == len(rank.pods)]
    revision = template.revision or "unknown"
    running = [rank for rank in ranks.running if _may_go_without_surge(service, rank, template)]
    no_room = surge_refused == revision or _has_no_room(service, observed, [*usable, *ranks.halves])
    refused = surge_size > 0 and len(running) > 0 and no_room
    if refused or surge_size == 0:
        size, budget = desired, rollout.max_unavailable
    else:
        size, budget = desired + surge_size, sum(rank.is_settled for rank in usable)
        running = ranks.running
    in_order = sorted(running, key=lambda rank: (rank.serves, -rank.number))
    # An outdated surge rank would stand in with the wrong revision, so it goes first.
    renewed = [rank for rank in stale if ranks.all_serve or not rank.serves]
    deletions = [*ranks.broken, *in_order[: max(0, budget - ranks.awaited)], *renewed]
    return EngineRollout(
        ranks=size,
        deletions=_deletions_of(deletions, template),
        under_way=under_way,
        surge_refused=revision if refused else "",
        surge=frozenset(range(desired, size)),
    )


def _may_go_without_surge(service: InferenceService, rank: EngineRank, template: _Template) -> bool:
    # On a cordoned node, a deletion frees no room for the successor, so the pod waits for a surge rank or its
    # eviction. An eviction takes one pod of a larger rank; the operator replaces such a rank as a whole if others
    # remain.
    if all(not pod.leaves(template.cordoned) for pod in template.outdated(rank)):
        return True
    return service.engine.nodes > 1 and service.engine.data_parallel_size > 1


def _is_broken(rank: EngineRank) -> bool:
    # otherwise nothing is lost: it will not recover by itself
    if rank.serves:
        return False
    return not rank.is_whole or rank.state.reason.is_failure or rank.state.phase in (*PENDING, Phase.FAILED)


def _is_half(rank: EngineRank) -> bool:
    return len({member.pod.node == "" for member in rank.pods}) > 1


def _has_no_room(service: InferenceService, observed: Observed, ranks: Sequence[EngineRank]) -> bool:
    """Return whether one of these ranks has waited too long for room; never with maxUnavailable 0."""
    if service.rollout.max_unavailable == 0:
        return False
    patience = service.rollout.surge_timeout
    waits = any(_cannot_be_placed(rank) and rank.waited >= patience for rank in ranks)
    first = service.engine.pods
    return waits or any(
        ordinal >= first and observed.missing.get(ordinal, 0.0) >= patience for ordinal in observed.not_created
    )


def _cannot_be_placed(rank: EngineRank) -> bool:
    if rank.state.phase is Phase.SCHEDULING:
        return rank.state.reason is not Reason.WAITING_FOR_NODE
    return rank.state.reason is Reason.VOLUME_FAILED and "Multi-Attach" in rank.state.message


def _deletions_of(ranks: Sequence[EngineRank], template: _Template) -> tuple[PodDeletion, ...]:
    return tuple(deletion for rank in ranks for deletion in _deletions_of_rank(rank, template))


def _deletions_of_rank(rank: EngineRank, template: _Template) -> Iterator[PodDeletion]:
    # all pods, or the rest of a replacement that has begun
    outdated = template.outdated(rank)
    for pod in (member.pod for member in rank.remaining):
        if pod in outdated:
            yield PodDeletion(pod, "Replacing", f"pod {pod.name} {_cause(pod, template)}")
        elif rank.has_one_revision:
            cause = f"pod {outdated[0].name}, which {_cause(outdated[0], template)}"
            yield PodDeletion(pod, "Replacing", f"pod {pod.name} serves together with {cause}")


def _cause(pod: Pod, template: _Template) -> str:
    if pod.leaves(template.cordoned):
        return f"is on node {pod.node}, which is being drained"
    return "runs the old revision"


def _under_way(ranks: Sequence[EngineRank], template: _Template) -> str:
    outdated = [pod for rank in ranks for pod in template.outdated(rank)]
    moving = sum(pod.leaves(template.cordoned) for pod in outdated)
    old = len(outdated) - moving
    parts = []
    if old:
        parts.append(f"{count(old, 'engine pod')} still {verb(old, 'runs', 'run')} the old revision")
    if moving:
        parts.append(f"{count(moving, 'engine pod')} {verb(moving, 'is', 'are')} on a node that is being drained")
    return "; ".join(parts)
