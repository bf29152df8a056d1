"""The figures of a run: collected from workers, written to the JSON file after each section, and printed."""

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.gpu.worker import Check, Figure, Figures, Line, Message, Warned

# Failed checks of a kernel whose cases are kept.
_FAILURES: Final = 12


@dataclass
class KernelChecks:
    cases: int = 0
    failures: int = 0
    largest_error: float = 0.0
    worst_case: str = ""
    # Problems by case.
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, check: Check) -> None:
        self.cases += 1
        error = check.error if math.isfinite(check.error) else math.inf
        if error >= self.largest_error:
            self.largest_error, self.worst_case = error, check.case
        if check.problem:
            self.failures += 1
            if len(self.failed) < _FAILURES:
                self.failed[check.case] = check.problem


class Results:
    """May be changed by several threads. `about`: the command's facts of the run."""

    def __init__(self, about: Mapping[str, Any], path: Path | None) -> None:
        self._about = dict(about)
        self._path = path
        self._lock = threading.Lock()
        self._sections: dict[str, Figures] = {}
        self._checks: dict[str, KernelChecks] = {}
        self._warnings: dict[str, None] = {}
        # Whether a section or a check has failed.
        self.has_errors = False

    def facts(self, values: Figures) -> None:
        with self._lock:
            self._about.update({name: value for name, value in values.items() if name not in self._about})

    def figures(self, section: str) -> Figures:
        with self._lock:
            return dict(self._sections.get(section, {}).get("figures", {}))

    def take(self, section: str, message: Message) -> None:
        with self._lock:
            match message:
                case Figure(key, value):
                    self._sections.setdefault(section, {"figures": {}})["figures"][key] = value
                case Check(kernel, case, error, problem):
                    self._checks.setdefault(kernel, KernelChecks()).add(message)
                    if problem:
                        self.has_errors = True
                        print(f"WRONG  {kernel}, {case}: error {error:.2g}; {problem}", flush=True)
                case Line(text):
                    print(text, flush=True)
                case Warned(text):
                    self._warnings.setdefault(text)

    def ended(self, section: str, error: str, seconds: float) -> None:
        with self._lock:
            entry = self._sections.setdefault(section, {"figures": {}})
            entry["seconds"] = round(seconds, 2)
            if error:
                self.has_errors = True
                entry["error"] = error
                print(f"FAILED {section} after {seconds:.1f} s: {_last_lines(error)}", flush=True)
            self._write()

    def print_end(self) -> None:
        """Print the warnings, the table of checks and the sections that failed."""
        with self._lock:
            about = {name: value for name, value in self._about.items() if name != "command"}
            print("\n" + ", ".join(f"{name} {value}" for name, value in about.items() if value))
            for text in self._warnings:
                print(f"warning: {text[:300]}")
            if self._checks:
                print(f"\n{'checks of kernels':<28}{'cases':>6}{'wrong':>7}{'largest error':>15}  case")
            for name, checks in sorted(self._checks.items()):
                error = f"{checks.largest_error:.2g}"
                print(f"{name:<28}{checks.cases:>6}{checks.failures:>7}{error:>15}  {checks.worst_case[:60]}")
            failed = [name for name, entry in self._sections.items() if "error" in entry]
            times = sum(entry.get("seconds", 0.0) for entry in self._sections.values())
            print(f"{len(self._sections)} sections, {times:.0f} s in all; failed: {', '.join(failed) or 'none'}")

    def _write(self) -> None:
        if self._path is None:
            return
        checks = {name: vars(each) for name, each in sorted(self._checks.items())}
        content = {
            "about": self._about,
            "checks": checks,
            "sections": self._sections,
            "warnings": list(self._warnings),
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(_finite(content), indent=1) + "\n")
        os.replace(new, self._path)


def _last_lines(error: str) -> str:
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    return " | ".join(lines[-3:])[:600]


def _finite(value: Any) -> Any:
    # JSON has no infinity and NaN.
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return value
