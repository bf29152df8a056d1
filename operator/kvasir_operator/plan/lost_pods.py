"""Deletions after the loss of a pod: the pod itself on a lost node, and the other pods of its rank."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvasir_contract.phases import Phase
from kvasir_operator.observe.engine_ranks import PENDING, EngineRank
from kvasir_operator.observe.observed import Member, Observed
from kvasir_operator.plan.engine_rollout import PodDeletion
from kvasir_operator.resources.names import workload_name
from kvasir_operator.spec import InferenceService

LOST_POD_MARGIN_SECONDS: Final = 5.0  # from a look at a terminating pod to its forced deletion
# in which the other pods of a rank notice the loss and start again by themselves
REJOIN_SECONDS: Final = 60.0
_NEEDS_ALL: Final = (Phase.WARMING, Phase.READY)  # reached by the pods of a rank only together


def release_lost(observed: Observed) -> tuple[PodDeletion, ...]:
    """Return forced deletions of terminating pods on lost nodes, whose kubelets cannot end them.

    On a live node, the process may still hold the GPU.
    """
    return tuple(
        PodDeletion(member.pod, "Released", f"{member.state.message or 'its node does not respond'}", grace=0)
        for member in observed.engines
        if _is_lost(member) and member.waited >= LOST_POD_MARGIN_SECONDS
    )


def regroup(service: InferenceService, observed: Observed, ranks: Sequence[EngineRank]) -> tuple[PodDeletion, ...]:
    """Return deletions of pods that continue without another pod of their rank.

    While a pod of the rank is pending, nothing is deleted: a slow image would make this endless.
    """
    if service.engine.nodes == 1:
        return ()
    name = workload_name(service, "engine")
    return tuple(
        PodDeletion(member.pod, "Regrouping", f"pod {member.pod.name} does not notice that pod {gone} is gone")
        for rank in ranks
        if not rank.serves and not any(member.state.phase in PENDING for member in rank.remaining)
        for gone in list(_gone(rank, name, observed))[:1]
        for member in rank.remaining
        if member.state.phase in _NEEDS_ALL
    )


def _gone(rank: EngineRank, name: str, observed: Observed) -> Iterator[str]:
    """Yield the names of pods that are missing, on a lost node or no longer part of their rank."""
    for ordinal in rank.missing:
        if observed.missing.get(ordinal, 0.0) >= REJOIN_SECONDS:
            yield f"{name}-{ordinal}"
    for member in rank.pods:
        if member.waited >= REJOIN_SECONDS and (_is_lost(member) or member.state.phase in _behind(rank, member)):
            yield member.pod.name


def _behind(rank: EngineRank, member: Member) -> tuple[Phase, ...]:
    # Such a pod has started again, and the others have not. The leader starts the members, so it is never in an
    # earlier phase. A pod without a report may be further.
    if not member.reported:
        return ()
    leader = rank.pods[0]
    if member is leader:
        return (Phase.STARTING,)
    return (Phase.STARTING, Phase.LOADING) if leader.state.phase in _NEEDS_ALL else ()


def _is_lost(member: Member) -> bool:
    return member.pod.terminating and member.state.phase is Phase.FAILED
