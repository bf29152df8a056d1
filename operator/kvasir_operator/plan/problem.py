"""A problem with the children or their pods."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvasir_contract.reasons import Reason


@dataclass(frozen=True)
class Problem:
    reason: Reason
    message: str


def most_urgent(problems: Iterable[Problem]) -> Problem | None:
    """Return the most urgent problem; the first of several equally urgent ones."""
    return min(problems, key=lambda problem: problem.reason.urgency, default=None)
