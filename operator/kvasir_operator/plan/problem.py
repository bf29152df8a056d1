"""Something about the children, or their pods, that is not as it should be."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvasir_contract.reasons import Reason


@dataclass(frozen=True)
class Problem:
    reason: Reason
    message: str


def most_urgent(problems: Iterable[Problem]) -> Problem | None:
    """Return the problem to report first; of equals the first."""
    return min(problems, key=lambda problem: problem.reason.urgency, default=None)
