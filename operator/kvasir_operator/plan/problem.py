"""Problems of the children and their pods, and how messages name several of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import PodState

MAX_NAMED: Final = 3  # A failure names one pod, because its message is long.


@dataclass(frozen=True)
class Problem:
    reason: Reason
    message: str


def most_urgent(problems: Iterable[Problem]) -> Problem | None:
    return min(problems, key=lambda problem: problem.reason.urgency, default=None)


def together(problems: Sequence[Problem]) -> Problem:
    # because each of them must be fixed
    in_order = sorted(problems, key=lambda problem: problem.reason.urgency)
    messages = [problem.message for problem in in_order[:MAX_NAMED]]
    more = f"; and {len(in_order) - MAX_NAMED} more" if len(in_order) > MAX_NAMED else ""
    return Problem(in_order[0].reason, "; also: ".join(messages) + more)


def most_urgent_of_pods(states: Sequence[PodState]) -> Problem | None:
    unready = [state for state in states if not state.ready]
    if not unready:
        return None
    reason = min((state.reason for state in unready), key=lambda reason: reason.urgency)
    those = [state for state in unready if state.reason is reason]
    shown = 1 if reason.is_failure else MAX_NAMED
    named = "; ".join(_sentence(state) for state in those[:shown])
    return Problem(reason, named + (f" (and {len(those) - shown} more)" if len(those) > shown else ""))


def count(number: int, noun: str) -> str:
    """Return "1 engine pod", "2 engine pods"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def verb(number: int, singular: str, plural: str) -> str:
    return singular if number == 1 else plural


def _sentence(state: PodState) -> str:
    if state.reason.is_failure:
        return f"pod {state.pod}: {state.message}"
    phase = f"{state.phase} {state.progress}".rstrip()
    return f"pod {state.pod}: {phase}" + (f" ({state.message})" if state.message else "")
