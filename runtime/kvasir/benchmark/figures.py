"""Figures of a benchmark: percentiles, lines and a JSON file."""

import dataclasses
import errno
import json
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kvasir.config.options import ConfigError


@dataclasses.dataclass
class RequestOutcome:
    """Times in seconds of time.perf_counter()."""

    start: float
    first: float = 0.0
    """Arrival of the first token of a streamed answer."""
    last: float = 0.0
    gaps: list[float] = dataclasses.field(default_factory=list)
    """Seconds between chunks."""
    tokens: int = 0
    prompt_tokens: int = 0
    hung_up: bool = False
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.start

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def end_to_end(self) -> float:
        return self.last - self.start

    def chunk_came(self, now: float) -> None:
        if self.first:
            self.gaps.append(now - self.last)
        else:
            self.first = now
        self.last = now


Figures = dict[str, Any]
PERCENTILES: Final = (50.0, 90.0, 99.0)
_TIMES: Final = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"), ("end to end", "end_to_end_ms"))


def parse_percentiles(text: str) -> tuple[float, ...]:
    """Return the numbers of a list such as 50,90,99.9, ascending. Raises ValueError."""
    shares = [float(part) for part in text.split(",")]
    if not all(0 <= share <= 100 for share in shares):
        raise ValueError(f"{text}: give numbers from 0 to 100, with commas between them")
    return tuple(sorted(shares))


def percentiles(
    values: Sequence[float], scale: float = 1000.0, shares: Sequence[float] = PERCENTILES
) -> dict[str, float] | None:
    """Return mean and percentiles, in milliseconds by default; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    result = {"mean": statistics.fmean(values)}
    for share in shares:
        at = ordered[min(len(ordered) - 1, int(share / 100 * len(ordered)))]
        result[f"p{share:g}"] = statistics.median(values) if share == 50 else at
    return {name: value * scale for name, value in result.items()}


def load_figures(
    outcomes: Sequence[RequestOutcome], seconds: float, shares: Sequence[float] = PERCENTILES
) -> Figures:
    """Return the figures of requests that took so many seconds in all. `shares`: the percentiles."""
    done = [outcome for outcome in outcomes if not outcome.error and not outcome.hung_up]
    streamed = [outcome for outcome in done if outcome.first]
    tokens, prompt_tokens = sum(o.tokens for o in done), sum(o.prompt_tokens for o in done)
    return {
        "requests": len(outcomes),
        "finished": len(done),
        "hung_up": sum(outcome.hung_up for outcome in outcomes),
        "failed": sum(bool(outcome.error) for outcome in outcomes),
        "seconds": seconds,
        "requests_per_second": len(done) / seconds,
        "output_tokens_per_second": tokens / seconds,
        "total_tokens_per_second": (tokens + prompt_tokens) / seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": tokens,
        "ttft_ms": percentiles([outcome.ttft for outcome in streamed], shares=shares),
        "tpot_ms": percentiles([outcome.tpot for outcome in streamed if outcome.tokens > 1], shares=shares),
        "itl_ms": percentiles([gap for outcome in streamed for gap in outcome.gaps], shares=shares),
        "end_to_end_ms": percentiles([outcome.end_to_end for outcome in done], shares=shares),
    }


def load_lines(figures: Figures) -> list[str]:
    return [
        f"requests   {figures['finished']} finished, {figures['hung_up']} hung up, {figures['failed']} failed "
        f"in {figures['seconds']:.2f} s = {figures['requests_per_second']:.1f} req/s",
        f"tokens     {figures['prompt_tokens']} in, {figures['output_tokens']} out = "
        f"{figures['output_tokens_per_second']:.1f} output tok/s, "
        f"{figures['total_tokens_per_second']:.1f} tok/s in all",
        *time_lines([(name, figures[key]) for name, key in _TIMES]),
    ]


def time_lines(rows: Sequence[tuple[str, dict[str, float] | None]]) -> list[str]:
    """Return a table of milliseconds, with a column for each key; rows without values are left out."""
    filled = [(name, values) for name, values in rows if values is not None]
    if not filled:
        return []
    columns = list(filled[0][1])
    lines = ["               " + "".join(f"{column:>9}" for column in columns)]
    for name, values in filled:
        lines.append(f"{name:<11} ms " + "".join(f"{values[column]:9.1f}" for column in columns))
    return lines


def check_json(path: str) -> None:
    """Raise ConfigError if the file could not be written, before anything is measured."""
    file = Path(path)
    problem = 0
    if file.is_dir():
        problem = errno.EISDIR
    elif not file.parent.is_dir():
        problem = errno.ENOENT
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        problem = errno.EACCES
    if problem:
        raise ConfigError(f"--json {path}: {os.strerror(problem)}")


def write_json(path: str, figures: Figures) -> None:
    """Write the file. Raises ConfigError if that fails."""
    try:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror}") from error


_SAMPLE: Final = re.compile(r"vllm:spec_decode_num_(\w+?)_total\{(.*)\} (\S+)")
_PLACE: Final = re.compile(r'position="(\d+)"')

# Of drafts, draft_tokens and accepted_tokens; "0", "1", … for the accepted tokens at each place.
DraftCounts = Mapping[str, float]


def draft_counts(text: str) -> DraftCounts:
    counts: dict[str, float] = defaultdict(float)
    for name, labels, value in _SAMPLE.findall(text):
        place = _PLACE.search(labels)
        counts[place[1] if place else name] += float(value)
    return counts


def draft_figures(before: DraftCounts, after: DraftCounts) -> dict[str, Any] | None:
    """Return the figures of the drafts in between, None without any."""
    counts = {name: value - before.get(name, 0) for name, value in after.items()}
    drafts, tokens = counts.get("drafts", 0), counts.get("draft_tokens", 0)
    if drafts <= 0 or tokens <= 0:
        return None
    accepted = counts.get("accepted_tokens", 0)
    places = sorted((int(name), value) for name, value in counts.items() if name.isdecimal())
    return {
        "drafts": int(drafts),
        "draft_tokens": int(tokens),
        "accepted_tokens": int(accepted),
        "acceptance_rate": accepted / tokens,
        "acceptance_length": 1 + accepted / drafts,
        "per_position_acceptance_rates": [value / drafts for _, value in places],
    }


def draft_lines(figures: Mapping[str, Any]) -> list[str]:
    by_place = " ".join(f"{rate:.0%}" for rate in figures["per_position_acceptance_rates"])
    return [
        f"drafts     {figures['drafts']} with {figures['draft_tokens']} tokens, "
        f"{figures['accepted_tokens']} accepted = {figures['acceptance_rate']:.1%}",
        f"           mean acceptance length {figures['acceptance_length']:.2f}, by position {by_place}",
    ]
