"""What a supervised process is (ProcessSpec) and where it stands (ProcessState)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedProgress


class LocalPhase(StrEnum):
    """Phases that the supervisor sees itself, besides those of the contract, which the process reports."""

    STOPPING = "Stopping"
    RESTARTING = "Restarting"
    """It ended, and is started again after a pause."""
    STOPPED = "Stopped"


@dataclass(frozen=True)
class Probe:
    """An HTTP GET now and then, as the kubelet does it: `failures` in a row mean no."""

    url: str
    period: float
    timeout: float
    failures: int


@dataclass(frozen=True)
class ProcessSpec:
    """A process to keep running."""

    service: str
    name: str
    """engine-0, frontend-0: unique within the service, and the log's file name."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment."""
    readiness: Probe
    liveness: Probe | None
    startup: Probe | None
    """The liveness probe waits until this one succeeded."""
    status_url: str
    """Answers with a StatusReport."""
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    pass_fds: tuple[int, ...] = ()


@dataclass
class ProcessState:
    """Where a process stands; written by its keeper."""

    spec: ProcessSpec
    phase: Phase | LocalPhase = Phase.STARTING
    message: str = ""
    progress: ReportedProgress | None = None
    ready_after: float | None = None
    """Seconds from the process's start until it was Ready."""
    restarts: int = 0
    cause: str = ""
    """Why the last process ended, once there was a restart."""
    pid: int | None = None
    last_lines: list[str] = field(default_factory=list)
    """The end of its log, after it failed."""
    warnings: list[str] = field(default_factory=list)
    """Of its log, up to when it was Ready."""

    @property
    def ready(self) -> bool:
        return self.phase == Phase.READY
