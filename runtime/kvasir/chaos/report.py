"""The report of a chaos run: figures for JSON, lines for people, and whether the service has passed."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvasir.chaos.answers import REFUSED, Answer, difference
from kvasir.chaos.constrained import invalid
from kvasir.chaos.disturbances import DisturbanceKind
from kvasir.chaos.questions import Question

INTERRUPTED: Final = "interrupted: the figures cover what had ended"
_MAX_DESCRIBED: Final = 20


@dataclass(frozen=True)
class Event:
    kind: DisturbanceKind
    rank: str
    at: float
    # Seconds; None if the engine did not recover within the limit.
    recovery: float | None


@dataclass(frozen=True)
class CheckedAnswer:
    question: Question
    answer: Answer
    expected: Any


@dataclass
class Report:
    seed: int
    # Longest time without a token of each stream before the first disturbance.
    undisturbed_gaps: list[float] = field(default_factory=list)
    # Seconds for a prompt with its answer up to the next token, at the concurrency of the load.
    recomputation: list[float] = field(default_factory=list)
    # Left out, because two undisturbed answers differ.
    unsteady: int = 0
    exchanges: list[CheckedAnswer] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    # By the metrics of the service.
    moved: int = 0
    tolerance: float = 0.0
    seconds: float = 0.0
    # "" for a complete run.
    stopped_by: str = ""

    def figures(self) -> dict[str, Any]:
        lost = [one for one in self.exchanges if one.answer.error]
        refused = [one for one in lost if one.answer.code == REFUSED]
        wrong = [text for one in self.exchanges if not one.answer.error and (text := self._difference(one))]
        flawed = [
            self._describe(one, text)
            for one in self.exchanges
            if not one.answer.error and (text := invalid(one.question.kind, one.answer.content))
        ]
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "stopped_by": self.stopped_by,
            "requests": len(self.exchanges),
            "lost": len(lost) - len(refused),
            "refused": len(refused),
            "wrong": len(wrong),
            "invalid": len(flawed),
            "unsteady": self.unsteady,
            "moved": self.moved,
            "problems": [self._describe(one, one.answer.error) for one in lost][:_MAX_DESCRIBED]
            + wrong[:_MAX_DESCRIBED]
            + flawed[:_MAX_DESCRIBED],
            "undisturbed_gap_seconds": spread(self.undisturbed_gaps),
            "recomputation_seconds": spread(self.recomputation),
            "disturbances": {str(kind): self._of(kind) for kind in DisturbanceKind if self._events(kind)},
        }

    def _difference(self, one: CheckedAnswer) -> str:
        found = difference(one.answer.content, one.expected, self.tolerance)
        return self._describe(one, found) if found else ""

    def _describe(self, one: CheckedAnswer, problem: str) -> str:
        begun = [event for event in self.events if one.answer.sent < event.at < one.answer.ended]
        during = ", ".join(f"{event.kind} of engine {event.rank}" for event in begun) or "no disturbance"
        return f"{one.question.name}: {problem} ({one.answer.ended - one.answer.sent:.1f} s, during {during})"

    def _of(self, kind: DisturbanceKind) -> dict[str, Any]:
        events = self._events(kind)
        usual = (spread(self.undisturbed_gaps) or {"p99": 0.0})["p99"]
        gaps = [gap for one in self.exchanges for event in events if (gap := gap_at(one.answer, event.at))]
        recoveries = [event.recovery for event in events if event.recovery is not None]
        return {
            "count": len(events),
            "open_streams": len(gaps),
            "stall_seconds": spread([gap for gap in gaps if gap > usual]),
            "recovery_seconds": spread(recoveries),
            "not_recovered": len(events) - len(recoveries),
        }

    def _events(self, kind: DisturbanceKind) -> list[Event]:
        return [event for event in self.events if event.kind is kind]


def passed(figures: dict[str, Any]) -> bool:
    """Return whether the run was complete, all answers were right and all engines came back."""
    complete = not figures["stopped_by"] and not any(
        each["not_recovered"] for each in figures["disturbances"].values()
    )
    return complete and not (figures["lost"] or figures["refused"] or figures["wrong"] or figures["invalid"])


def lines(figures: dict[str, Any]) -> list[str]:
    result = [
        f"seed          {figures['seed']}",
        f"requests      {figures['requests']} in {figures['seconds']:.0f} s: {figures['lost']} lost, "
        f"{figures['wrong']} wrong, {figures['invalid']} invalid, {figures['refused']} refused as the cause of "
        f"losses; {figures['moved']} moves to another engine",
        f"undisturbed   longest gap of a stream: {_text(figures['undisturbed_gap_seconds'])}",
        f"recomputation prompt and answer again: {_text(figures['recomputation_seconds'])}",
    ]
    if figures["stopped_by"]:
        result.append(f"stopped       {figures['stopped_by']}")
    if figures["unsteady"]:
        result.append(f"left out      {figures['unsteady']} requests whose undisturbed answers differ")
    for kind, each in figures["disturbances"].items():
        stalls = each["stall_seconds"]
        result += [
            f"{kind:<13} {each['count']} times, with {each['open_streams']} streams open: "
            + (f"{stalls['count']} stalled: {_text(stalls)}" if stalls else "none stalled"),
            f"              the engine is back after {_text(each['recovery_seconds'])}"
            + (f"; {each['not_recovered']} times not" if each["not_recovered"] else ""),
        ]
    return [*result, *(f"problem: {problem}" for problem in figures["problems"])]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)

    def percentile(share: float) -> float:
        return ordered[math.ceil(share * len(ordered)) - 1]

    return {"count": len(ordered), "p50": percentile(0.5), "p99": percentile(0.99), "max": ordered[-1]}


def gap_at(answer: Answer, at: float) -> float:
    """Return the longest time without a token after a disturbance; 0 if the stream was not open then."""
    if not answer.chunks or not answer.sent < at < answer.chunks[-1]:
        return 0.0
    times = [answer.sent, *answer.chunks]
    last = max(time for time in times if time <= at)
    return longest_gap([last, *(time for time in times if time > at)])


def longest_gap(times: Sequence[float]) -> float:
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


def _text(values: dict[str, float] | None) -> str:
    if values is None:
        return "not seen"
    return f"p50 {values['p50']:.2f} s, p99 {values['p99']:.2f} s, at most {values['max']:.2f} s"
