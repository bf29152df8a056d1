"""Deletions of pods that hold room for a rank while another of its pods finds none.

Kubernetes places pods one by one, so two ranks may each hold room that the other needs. All pods of a rank are
deleted, because the successors queue behind the waiting pods.
"""

import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kvasir_operator.observe.engine_ranks import EngineRank
from kvasir_operator.observe.observed import Observed
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.engine_rollout import PodDeletion
from kvasir_operator.spec import InferenceService

MIN_HOLD_SECONDS: Final = 900.0  # the cluster autoscaler allows as much for a new node
MAX_HOLD_SECONDS: Final = 3600.0  # as Kueue's backoff
MIN_OBSERVED_SECONDS: Final = 60.0  # by this operator's clock


def give_room_back(
    service: InferenceService,
    observed: Observed,
    ranks: Sequence[EngineRank],
    previous: Mapping[str, Any],
    now: datetime,
) -> tuple[PodDeletion, ...]:
    """Return deletions of the pods of the highest rank that has held room for too long.

    Others get time to take the room before the next deletion. `previous` is the current status.
    """
    if service.engine.nodes == 1:
        return ()
    rank = next((rank for rank in reversed(ranks) if _holds_room_in_vain(rank)), None)
    if rank is None or _held(rank, now) < _patience(service, previous, now):
        return ()
    if any(_held(other, now) < MIN_HOLD_SECONDS for other in ranks if other is not rank and not _is_placed(other)):
        return ()
    why = f"rank {rank.number} waits for room for all of its {service.engine.nodes} pods"
    return tuple(
        PodDeletion(member.pod, "GivingRoomBack", f"pod {member.pod.name} gives its place back, because {why}")
        for member in rank.remaining
    )


def _holds_room_in_vain(rank: EngineRank) -> bool:
    return rank.without_room >= MIN_OBSERVED_SECONDS and any(member.pod.node for member in rank.remaining)


def _is_placed(rank: EngineRank) -> bool:
    return not rank.missing and all(member.pod.node and not member.pod.terminating for member in rank.pods)


def _held(rank: EngineRank, now: datetime) -> float:
    # seconds since a pod of the rank was created or placed
    if len(rank.remaining) < len(rank.pods):
        return 0.0
    times = [member.pod.scheduling_changed for member in rank.pods]
    return min((_seconds(time, now) for time in times if time), default=rank.without_room)


def _patience(service: InferenceService, previous: Mapping[str, Any], now: datetime) -> float:
    # Half of the time without ready engines: the interval doubles. It differs by up to 50 % between services, so
    # that two of them do not swap room forever.
    ready = condition(previous, "EnginesReady")
    unready = _seconds(ready["lastTransitionTime"], now) if ready.get("status") == "False" else 0.0
    spread = 1 + zlib.crc32(service.uid.encode()) / 2**33
    return min(max(MIN_HOLD_SECONDS, unready / 2), MAX_HOLD_SECONDS) * spread


def _seconds(time: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(time)).total_seconds()
