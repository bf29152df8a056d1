"""The body of GET /status on the ops port of an engine or frontend.

The container may run any image, so `StatusReport.from_json` limits every field.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from kvasir_contract.failure import cut
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason

MAX_REPORT_BYTES: Final = 64 * 1024
MAX_MESSAGE_BYTES: Final = 1024
MAX_COUNT: Final = 2**63 - 1
MAX_LINKS: Final = 1024
MAX_PROBLEMS: Final = 8
LOAD_WINDOW_SECONDS: Final = 30.0


def adapter_list_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class ReportError(ValueError):
    pass


@dataclass(frozen=True)
class ReportedProgress:
    """Bytes of the weights: loaded and total."""

    done: int
    total: int


@dataclass(frozen=True)
class RunningStep:
    number: int
    phase: str
    seconds: float
    batch: str


@dataclass(frozen=True)
class ReportedDemand:
    gate_closed: bool  # holds all requests
    # since the last request came or ended; 0 while one is live; None before the first
    request_seconds: float | None
    engine_seconds: float | None  # how long an engine has been ready; None without one
    can_hold: bool = True  # without an engine


@dataclass(frozen=True)
class ReportedLoad:
    """The load of a frontend in the last `seconds`, at most LOAD_WINDOW_SECONDS."""

    seconds: float
    engines: int  # that take requests
    arrived: int
    finished: int  # without those that were aborted
    waiting: int  # the most at once that had no engine
    running: int  # the most at once that had one
    # 95th percentiles of all requests, those that still wait included; None without requests
    queue_seconds: float | None
    ttft: float | None
    kv_cache_utilization: float | None  # the highest mean of the engines, 0 to 1


@dataclass(frozen=True)
class ReportedAdapters:
    """The LoRA adapters of a frontend."""

    list: str  # `adapter_list_digest` of the list that it has read
    served: int
    problems: tuple[str, ...] = ()  # at most MAX_PROBLEMS, one for each adapter


@dataclass(frozen=True)
class StatusReport:
    phase: Phase
    message: str = ""  # "" without a problem
    reason: Reason | None = None  # why a running process cannot work, as LinkRefused
    progress: ReportedProgress | None = None  # in phase Loading
    live_requests: int = 0
    incarnation: str = ""  # of an engine: rank and a fresh id
    rank: int | None = None  # of an engine
    # Frontends that have accepted this engine: IP addresses or paths of Unix sockets, at most MAX_LINKS.
    links: tuple[str, ...] | None = None
    startup_seconds: Mapping[str, float] = field(default_factory=dict)  # by finished start-up phase
    step: RunningStep | None = None
    demand: ReportedDemand | None = None
    adapters: ReportedAdapters | None = None  # of a frontend whose list is in a file
    load: ReportedLoad | None = None  # of a frontend

    def to_json(self) -> bytes:
        fields = {
            "phase": self.phase,
            "message": cut(self.message, MAX_MESSAGE_BYTES),
            "reason": self.reason,
            "progress": None if self.progress is None else vars(self.progress),
            "live_requests": self.live_requests,
            "incarnation": self.incarnation,
            "rank": self.rank,
            "links": None if self.links is None else self.links[:MAX_LINKS],
            "startup_seconds": {phase: round(seconds, 3) for phase, seconds in self.startup_seconds.items()},
            "step": None if self.step is None else vars(self.step),
            "demand": None if self.demand is None else vars(self.demand),
            "adapters": None if self.adapters is None else _bounded(self.adapters),
            "load": None if self.load is None else vars(self.load),
        }
        return json.dumps(fields, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, body: bytes) -> "StatusReport":
        """Parse a body. Raises ReportError."""
        if len(body) > MAX_REPORT_BYTES:
            raise ReportError(f"the body has {len(body)} bytes; the limit is {MAX_REPORT_BYTES}")
        try:
            fields = json.loads(body, parse_constant=_refuse)
            names = ("reason", "progress", "rank", "links", "step", "demand", "adapters", "load")
            reason, progress, rank, links, step, demand, adapters, load = (fields.get(name) for name in names)
            return cls(
                phase=Phase(fields["phase"]),
                message=cut(str(fields["message"]), MAX_MESSAGE_BYTES),
                reason=None if reason is None else Reason(reason),
                progress=None
                if progress is None
                else ReportedProgress(_count(progress["done"]), _count(progress["total"])),
                live_requests=_count(fields.get("live_requests", 0)),
                incarnation=cut(str(fields.get("incarnation", "")), 128),
                rank=None if rank is None else _count(rank),
                links=None if links is None else _addresses(links),
                startup_seconds={
                    cut(str(k), 32): _seconds(v) for k, v in fields.get("startup_seconds", {}).items()
                },
                step=None if step is None else _step(step),
                demand=None if demand is None else _demand(demand),
                adapters=None if adapters is None else _adapters(adapters),
                load=None if load is None else _load(load),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ReportError(f"not a status report: {error!r}") from error


def _bounded(adapters: ReportedAdapters) -> dict[str, Any]:
    problems = [cut(problem, MAX_MESSAGE_BYTES) for problem in adapters.problems[:MAX_PROBLEMS]]
    return {**vars(adapters), "problems": problems}


def _adapters(fields: Mapping[str, Any]) -> ReportedAdapters:
    problems = fields["problems"]
    if not isinstance(problems, list) or len(problems) > MAX_PROBLEMS:
        raise ValueError(f"problems must be a list of at most {MAX_PROBLEMS} texts")
    texts = tuple(cut(str(problem), MAX_MESSAGE_BYTES) for problem in problems)
    return ReportedAdapters(cut(str(fields["list"]), 64), _count(fields["served"]), texts)


def _step(fields: Mapping[str, Any]) -> RunningStep:
    batch = cut(str(fields["batch"]), MAX_MESSAGE_BYTES)
    return RunningStep(_count(fields["number"]), cut(str(fields["phase"]), 32), _seconds(fields["seconds"]), batch)


def _demand(fields: Mapping[str, Any]) -> ReportedDemand:
    request, engine = fields["request_seconds"], fields["engine_seconds"]
    return ReportedDemand(
        _truth(fields["gate_closed"]),
        None if request is None else _seconds(request),
        None if engine is None else _seconds(engine),
        _truth(fields["can_hold"]),
    )


def _load(fields: Mapping[str, Any]) -> ReportedLoad:
    times = [fields[name] for name in ("queue_seconds", "ttft", "kv_cache_utilization")]
    return ReportedLoad(
        _seconds(fields["seconds"]),
        *(_count(fields[name]) for name in ("engines", "arrived", "finished", "waiting", "running")),
        *(None if value is None else _seconds(value) for value in times),
    )


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _addresses(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) > MAX_LINKS:
        raise ValueError(f"links must be a list of at most {MAX_LINKS} addresses")
    return tuple(cut(str(value), 128) for value in values)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{value!r} is not a count")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a time in seconds")
    return float(value)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not allowed")
