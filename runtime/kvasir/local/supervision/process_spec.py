"""A supervised process (ProcessSpec) and its state (ProcessState)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedProgress


class LocalPhase(StrEnum):
    """Phases that the supervisor itself sees, besides those that the process reports."""

    STOPPING = "Stopping"
    # It ended, and is started again after a pause.
    RESTARTING = "Restarting"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class Probe:
    """An HTTP GET at intervals, as the kubelet's; `failures` in a row count as failed."""

    url: str
    period: float
    timeout: float
    failures: int


@dataclass(frozen=True)
class ProcessSpec:
    service: str
    # engine-0 or frontend-0: unique within the service, and the log's file name.
    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    readiness: Probe
    liveness: Probe | None
    # The liveness probe waits until this one has succeeded.
    startup: Probe | None
    status_url: str
    # Seconds between SIGTERM and SIGKILL.
    grace: float
    pass_fds: tuple[int, ...] = ()
    # It is needed until the others have ended: they send it the requests that they still hold.
    ends_last: bool = False


@dataclass
class ProcessState:
    spec: ProcessSpec
    phase: Phase | LocalPhase = Phase.STARTING
    message: str = ""
    progress: ReportedProgress | None = None
    # Seconds.
    ready_after: float | None = None
    restarts: int = 0
    # Of the last end; "" before a restart.
    cause: str = ""
    pid: int | None = None
    last_lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return self.phase == Phase.READY
