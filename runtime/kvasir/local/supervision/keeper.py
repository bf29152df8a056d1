"""Keeps one process running: probes, phases, restarts with back-off, the end. One Keeper per ProcessSpec.

spawn ─► probe and look ─► it ends ─► pause (1 s, 2 s, … 30 s) ─► spawn …
                             │ exit code 2: the user's mistake        ► Failed, for good
                             │ asked to stop                          ► Stopped
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from kvasir.local.supervision.child import ChildProcess
from kvasir.local.supervision.process_spec import LocalPhase, Probe, ProcessSpec, ProcessState
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import Failure, find_failure
from kvasir_contract.logs import read_line
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedProgress, ReportError, StatusReport


class Prober:
    # A connection each time, as the kubelet does.
    def __init__(self, spec: ProcessSpec, http: httpx.AsyncClient) -> None:
        self._spec = spec
        self._http = http

    async def look(self) -> StatusReport | None:
        answer = await self._get(self._spec.status_url, self._spec.readiness.timeout)
        if isinstance(answer, str) or not answer.is_success:
            return None
        try:
            return StatusReport.from_json(answer.content)
        except ReportError:
            return None

    async def unhealthy(self, liveness: Probe) -> str:
        """Return the reason, once a probe has failed as often as it may."""
        if self._spec.startup is not None:
            failed = await self._failed(self._spec.startup, until_success=True)
            if failed:
                return f"its startup probe {failed}"
        return f"its liveness probe {await self._failed(liveness)}"

    async def _failed(self, probe: Probe, until_success: bool = False) -> str:
        failures, trouble = 0, ""
        while failures < probe.failures:
            await asyncio.sleep(probe.period)
            trouble = await self._trouble(probe)
            failures = failures + 1 if trouble else 0
            if until_success and not trouble:
                return ""
        return f"failed {failures} times, last with {trouble}"

    async def _trouble(self, probe: Probe) -> str:
        answer = await self._get(probe.url, probe.timeout)
        if isinstance(answer, str):
            return answer
        return "" if answer.is_success else f"{answer.status_code} {answer.text.strip()[:200]}"

    async def _get(self, url: str, seconds: float) -> httpx.Response | str:
        """Return the answer, or the reason why there is none."""
        try:
            return await self._http.get(url, timeout=seconds)
        except httpx.TransportError as error:
            return f"{type(error).__name__} {error}".strip()


@dataclass(frozen=True)
class Timing:
    # Seconds.
    first_pause: float = 1.0
    longest_pause: float = 30.0
    # A process that ran for this long starts over with the first pause.
    healthy_after: float = 60.0
    # For a process that is not Ready; one that is Ready is checked at its probe's interval.
    look: float = 0.2


class Shutdown:
    """The end, announced to every keeper: stop with grace, those with `ends_last` after the others, then kill."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.stop_last = asyncio.Event()
        self.kill = asyncio.Event()

    async def wait(self, ends_last: bool) -> None:
        await self.stop.wait()
        if ends_last:
            await self.stop_last.wait()


class Keeper:
    """Owns a process and its ProcessState; `changed` is called after each change of the state."""

    def __init__(
        self,
        spec: ProcessSpec,
        log: Path,
        shutdown: Shutdown,
        http: httpx.AsyncClient,
        changed: Callable[[ProcessState], None],
        timing: Timing,
    ) -> None:
        self.state = ProcessState(spec)
        self._spec = spec
        self.log = log
        self._shutdown = shutdown
        self._prober = Prober(spec, http)
        self._changed = changed
        self._timing = timing
        self._pause = timing.first_pause

    async def run(self) -> None:
        """Return after a request to stop, or when the process failed for good."""
        while not self._shutdown.stop.is_set():
            self._enter(Phase.STARTING)
            began = time.monotonic()
            child = await ChildProcess.spawn(self._spec, self.log)
            self.state.pid = child.pid
            try:
                unhealthy = await self._live(child, began)
            finally:
                child.kill()
                self.state.pid = None
            code = await child.wait()
            if self._shutdown.stop.is_set():
                break
            lines = child.last_lines()
            failure = find_failure("\n".join(lines))
            self.state.last_lines = [line for line in lines if Failure.from_json(line) is None]
            if code < 0:  # it wrote nothing about a signal
                self.state.last_lines = [line for line in self.state.last_lines if not _is_routine(line)]
            if code == ExitCode.USER_ERROR:
                self._enter(Phase.FAILED, failure.message if failure else _last_of(lines))
                return
            cause = unhealthy or (failure.message if failure else _describe(code))
            await self._pause_after(cause, time.monotonic() - began)
        self._enter(LocalPhase.STOPPED)

    async def _live(self, child: ChildProcess, began: float) -> str:
        """Return the reason if its health ended it, else ""."""
        looking = asyncio.create_task(self._follow_phases(child, began))
        exited = asyncio.create_task(child.wait())
        stopped = asyncio.create_task(self._shutdown.wait(self._spec.ends_last))
        ends: set[asyncio.Task[object]] = {exited, stopped}
        unhealthy: asyncio.Task[str] | None = None
        if self._spec.liveness is not None:
            unhealthy = asyncio.create_task(self._prober.unhealthy(self._spec.liveness))
            ends.add(unhealthy)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            looking.cancel()
            reason = unhealthy.result() if unhealthy is not None and unhealthy.done() else ""
            if not exited.done():
                self._enter(LocalPhase.STOPPING, reason)
                await child.end(self._spec.grace, self._shutdown.kill)
            return reason
        finally:
            for task in (looking, *ends):
                task.cancel()

    async def _follow_phases(self, child: ChildProcess, began: float) -> None:
        while True:
            seen = await self._prober.look()
            if seen is not None and seen.phase is not Phase.FAILED:  # what a process failed of, its end shows
                if seen.phase == Phase.READY and self.state.ready_after is None:
                    self.state.ready_after = time.monotonic() - began
                    self.state.warnings = warnings_of(child.lines())
                message = seen.message if seen.reason is None else f"{seen.reason}: {seen.message}"
                self._enter(seen.phase, message, seen.progress)
            await asyncio.sleep(self._spec.readiness.period if self.state.ready else self._timing.look)

    async def _pause_after(self, reason: str, ran: float) -> None:
        if ran >= self._timing.healthy_after:
            self._pause = self._timing.first_pause
        self.state.restarts += 1
        self.state.cause = reason
        self.state.ready_after = None
        self._enter(
            LocalPhase.RESTARTING, f"{reason}, restart {self.state.restarts}; next try in {self._pause:g} s"
        )
        try:
            async with asyncio.timeout(self._pause):
                await self._shutdown.stop.wait()
        except TimeoutError:
            self._pause = min(2 * self._pause, self._timing.longest_pause)

    def _enter(
        self, phase: Phase | LocalPhase, message: str = "", progress: ReportedProgress | None = None
    ) -> None:
        state = self.state
        if (phase, message, progress) != (state.phase, state.message, state.progress) or state.pid is None:
            state.phase, state.message, state.progress = phase, message, progress
            self._changed(state)


def warnings_of(lines: Sequence[str]) -> list[str]:
    """Return the warnings in a log, each once."""
    records = filter(None, map(read_line, lines))
    return list(dict.fromkeys(message for level, message in records if level == "warning"))


def _is_routine(line: str) -> bool:
    record = read_line(line)
    return record is not None and record[0] in ("debug", "info")


def _last_of(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "it wrote nothing"


def _describe(code: int) -> str:
    return f"ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
