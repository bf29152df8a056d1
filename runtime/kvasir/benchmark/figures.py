"""The figures of a benchmark: percentiles, the lines that `kvasir bench` prints and its JSON file."""

import errno
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvasir.benchmark.request_outcome import RequestOutcome
from kvasir.config.options import ConfigError

Figures = dict[str, Any]
_COLUMNS: Final = ("mean", "p50", "p90", "p99")
_TIMES: Final = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"), ("end to end", "end_to_end_ms"))


def percentiles(values: Sequence[float], scale: float = 1000.0) -> dict[str, float] | None:
    """Mean, median, 90th and 99th percentile, in milliseconds by default; None where there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    at = {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for name, share in (("p90", 0.9), ("p99", 0.99))
    }
    result = {"mean": statistics.fmean(values), "p50": statistics.median(values)} | at
    return {name: value * scale for name, value in result.items()}


def load_figures(outcomes: Sequence[RequestOutcome], seconds: float) -> Figures:
    """Of requests that a server answered within so many seconds in all."""
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
        "ttft_ms": percentiles([outcome.ttft for outcome in streamed]),
        "tpot_ms": percentiles([outcome.tpot for outcome in streamed if outcome.tokens > 1]),
        "itl_ms": percentiles([gap for outcome in streamed for gap in outcome.gaps]),
        "end_to_end_ms": percentiles([outcome.end_to_end for outcome in done]),
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
    """A table of milliseconds; rows without values are left out."""
    lines = ["               " + "".join(f"{column:>9}" for column in _COLUMNS)]
    for name, values in rows:
        if values is not None:
            lines.append(f"{name:<11} ms " + "".join(f"{values[column]:9.1f}" for column in _COLUMNS))
    return lines


def check_json(path: str) -> None:
    """Before anything is measured: raises ConfigError where the file could not be written."""
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
    """Raises ConfigError where the file cannot be written."""
    try:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror}") from error
