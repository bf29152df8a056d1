"""State kept between the reconciles of one service. Without it, a reconcile is still correct but sends more
requests."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kvasir_contract.status_report import StatusReport
from kvasir_operator.observe.observed import ChildKey, Refusal

Mark = tuple[str, ...]
"""For a pod: its UID, phase and whether it is leaving. For a missing engine pod: MISSING and its ordinal."""
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
    first_seen: dict[tuple[str, ...], float] = field(default_factory=dict)
    """When a pod was first observed in its present state, or was first observed missing (monotonic)."""
    reports: Mapping[str, StatusReport] = field(default_factory=dict)
    """The last report of each pod, by UID."""
    rollout: Mapping[str, Any] | None = None
    """The `rollout` field of the last decided status, written or not."""
    link_secret: str = ""
    secrets_checked: float = float("-inf")
    secrets: tuple[str, ...] = ()
    """Names of the Secrets that pods mount, as of the last reconcile."""
    link_secret_exists: bool | None = None
    missing_key_secrets: frozenset[str] = frozenset()
    """Fields of the frontend that name a Secret with keys that does not exist."""
    status_written: float = float("-inf")

    def since(self, mark: Mark, now: float) -> float:
        """Return the seconds since a mark was first observed, and remember the mark."""
        return now - self.first_seen.setdefault(mark, now)

    def forget_but(self, marks: Collection[Mark], *, of_missing: bool) -> None:
        """Drop outdated marks, either those of missing pods or those of existing ones."""
        for mark in [mark for mark in self.first_seen if (mark[0] == MISSING) is of_missing and mark not in marks]:
            del self.first_seen[mark]
