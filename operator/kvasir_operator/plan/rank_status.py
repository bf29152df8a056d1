"""The status of each engine rank: its leader's pod, phase, progress and message."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvasir_contract.failure import cut
from kvasir_operator.observe.engine_ranks import EngineRank


def rank_entries(
    ranks: Sequence[EngineRank], previous: Sequence[Mapping[str, Any]], now: str
) -> list[dict[str, Any]]:
    """Return `status.engines.ranks`. A rank with the same pod and phase keeps its `since` of `previous`."""
    before = {entry["rank"]: entry for entry in previous}
    most = _message_bytes(len(ranks))
    entries: list[dict[str, Any]] = []
    for rank in ranks:
        old, state = before.get(rank.number, {}), rank.state
        same = (old.get("pod"), old.get("phase")) == (rank.leader, state.phase)
        entry = {
            "rank": rank.number,
            "pod": rank.leader,
            "phase": str(state.phase),
            "progress": state.progress,
            "message": cut(state.message, most),
            "restarts": rank.restarts or "",
            "since": old.get("since", now) if same else now,
        }
        entries.append({field: value for field, value in entry.items() if value != ""})
    return entries


def _message_bytes(ranks: int) -> int:
    # 128 KiB for all: JSON escapes may need six times as much, and etcd accepts 1.5 MiB
    return min(1024, max(64, 128 * 1024 // max(1, ranks)))
