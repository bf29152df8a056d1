"""Deletions after the loss of a pod: the pod itself on a lost node, and the pods that served together with it."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvasir_contract.phases import Phase
from kvasir_operator.observe.engine_ranks import PENDING, EngineRank
from kvasir_operator.observe.observed import Member, Observed
from kvasir_operator.plan.engine_rollout import PodDeletion
from kvasir_operator.resources.names import workload_name
from kvasir_operator.spec import InferenceService

LOST_POD_MARGIN_SECONDS: Final = 5.0
"""How long a terminating pod must be observed on a lost node before it is force-deleted."""
REJOIN_SECONDS: Final = 60.0
"""How long the other pods of a rank have to notice that a pod is gone. They then start again by themselves."""
_NEEDS_ALL: Final = (Phase.WARMING, Phase.READY)
"""Phases that a pod of a rank reaches only together with the others."""


def release_lost(observed: Observed) -> tuple[PodDeletion, ...]:
    """Return forced deletions of terminating pods on lost nodes, where no kubelet can end them.

    A pod on a live node is never force-deleted, however long it takes, because its process may still hold the GPU.
    If the process on a lost node still runs, the link distinguishes it from its successor by the incarnation.
    """
    return tuple(
        PodDeletion(member.pod, "Released", f"{member.state.message or 'its node does not respond'}", grace=0)
        for member in observed.engines
        if _is_lost(member) and member.waited >= LOST_POD_MARGIN_SECONDS
    )


def regroup(service: InferenceService, observed: Observed, ranks: Sequence[EngineRank]) -> tuple[PodDeletion, ...]:
    """Return deletions of pods that go on although another pod of their rank is gone. The rank then starts again.

    While a pod of the rank is pending, nothing is deleted: with a slow image this would never end.
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
    """Yield the names of pods that are missing, on a lost node or not part of their rank any more."""
    for ordinal in rank.missing:
        if observed.missing.get(ordinal, 0.0) >= REJOIN_SECONDS:
            yield f"{name}-{ordinal}"
    for member in rank.pods:
        if member.waited >= REJOIN_SECONDS and (_is_lost(member) or member.state.phase in _behind(rank, member)):
            yield member.pod.name


def _behind(rank: EngineRank, member: Member) -> tuple[Phase, ...]:
    """Return the phases of a pod that contradict a later phase of the others: it started again, and they did not.

    The leader starts the members, so it is never before them, but a member may load faster than others. The phase
    of a pod without a report is not known: it may be later.
    """
    if not member.reported:
        return ()
    leader = rank.pods[0]
    if member is leader:
        return (Phase.STARTING,)
    return (Phase.STARTING, Phase.LOADING) if leader.state.phase in _NEEDS_ALL else ()


def _is_lost(member: Member) -> bool:
    return member.pod.terminating and member.state.phase is Phase.FAILED
