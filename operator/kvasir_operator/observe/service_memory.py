"""State kept between the reconciles of one service. It only saves requests."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kvasir_contract.status_report import StatusReport
from kvasir_operator.cluster.kinds import RARE, Kind
from kvasir_operator.observe.observed import ChildKey, Refusal

Mark = tuple[str, ...]  # UID, phase and whether the pod is leaving; or MISSING and an ordinal
MISSING: Final = "missing"


class Key(NamedTuple):
    """Namespace and name of an InferenceService."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass
class ServiceMemory:
    uid: str
    refusals: Mapping[ChildKey, Refusal] = field(default_factory=dict)
    unchanged: dict[str, str] = field(default_factory=dict)
    first_seen: dict[tuple[str, ...], float] = field(default_factory=dict)  # monotonic
    reports: Mapping[str, StatusReport] = field(default_factory=dict)  # the last one of each pod, by UID
    rollout: Mapping[str, Any] | None = None  # field of the last decided status, written or not
    link_secret: str = ""
    secrets_checked: float = float("-inf")
    secrets: tuple[str, ...] = ()  # which pods mount
    link_secret_exists: bool | None = None
    missing_key_secrets: frozenset[str] = frozenset()  # fields that name them
    rare_kinds: frozenset[Kind] = frozenset(RARE)  # of children that may exist
    status_written: float = float("-inf")

    def since(self, mark: Mark, now: float) -> float:
        """Return the seconds since a mark was first observed, and remember the mark."""
        return now - self.first_seen.setdefault(mark, now)

    def forget_but(self, marks: Collection[Mark], *, of_missing: bool) -> None:
        for mark in [mark for mark in self.first_seen if (mark[0] == MISSING) is of_missing and mark not in marks]:
            del self.first_seen[mark]
