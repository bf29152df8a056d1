"""The status of each engine rank: its pod, phase, progress and message."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvasir_contract.failure import cut
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Observed, PodState
from kvasir_operator.resources.names import workload_name
from kvasir_operator.spec import InferenceService


def desired_rank_states(service: InferenceService, observed: Observed) -> list[PodState]:
    """Return the state of every desired rank, including ranks that have no pod."""
    name = workload_name(service, "engine")
    states = {member.pod.rank: member.state for member in observed.engines}

    def missing(rank: int) -> PodState:
        pod = f"{name}-{rank}"
        if rank in observed.not_created:
            message = (
                f"the pod cannot be created ({observed.not_created[rank]}): change the quota or policy that "
                "forbids it, or change the InferenceService"
            )
            return PodState(pod, Phase.SCHEDULING, Reason.UNSCHEDULABLE, message)
        return PodState(pod, Phase.SCHEDULING, Reason.LOADING, "the pod does not exist yet")

    return [states.get(rank) or missing(rank) for rank in range(service.engine.data_parallel_size)]


def rank_entries(
    service: InferenceService, observed: Observed, previous: Sequence[Mapping[str, Any]], now: str
) -> list[dict[str, Any]]:
    """Return `status.engines.ranks`. A rank that keeps its pod and phase keeps its `since` of `previous`."""
    before = {entry["rank"]: entry for entry in previous}
    states = dict(enumerate(desired_rank_states(service, observed)))
    states |= {member.pod.rank: member.state for member in observed.engines}
    entries: list[dict[str, Any]] = []
    for rank, state in sorted(states.items()):
        old = before.get(rank, {})
        same = (old.get("pod"), old.get("phase")) == (state.pod, state.phase)
        entry = {
            "rank": rank,
            "pod": state.pod,
            "phase": str(state.phase),
            "progress": state.progress,
            "message": cut(state.message, _message_bytes(len(states))),
            "restarts": state.restarts or "",
            "since": old.get("since", now) if same else now,
        }
        entries.append({field: value for field, value in entry.items() if value != ""})
    return entries


def _message_bytes(ranks: int) -> int:
    """Return the longest message of a rank.

    All messages together take at most 128 KiB. JSON escapes may make that six times longer; etcd accepts 1.5 MiB.
    """
    return min(1024, max(64, 128 * 1024 // max(1, ranks)))
