"""Engines of a `kvasir up` or `kvasir serve` on this machine, found by the port of the URL.

The supervisor listens at the port. Engines are its children with the service's id in their environment. A signal
goes through a descriptor of the process that was checked, so it cannot reach another one with the same number.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir.chaos.disturbances import DisturbanceKind
from kvasir.config.options import CommandFailed, ConfigError
from kvasir_contract import environment

_LISTENING: Final = "0A"
_PROC: Final = Path("/proc")


@dataclass(frozen=True)
class RunningEngine:
    rank: str
    pid: int


class LocalTarget:
    kinds = frozenset({DisturbanceKind.KILL, DisturbanceKind.FREEZE, DisturbanceKind.DRAIN})

    def __init__(self, port: int, freeze_time: float) -> None:
        """Find the service. Raises ConfigError if this user has none at the port."""
        self._freeze_time = freeze_time
        self._supervisor, self._uid = find_service(port)

    async def engines(self) -> list[str]:
        if not (found := self.processes()) and _has_ended(self._supervisor):
            raise CommandFailed(f"process {self._supervisor} does not run any more: the service has ended")
        return [engine.rank for engine in found]

    def processes(self) -> list[RunningEngine]:
        found = [self._engine(pid) for pid in _children(self._supervisor)]
        return sorted(filter(None, found), key=lambda engine: int(engine.rank))

    async def disturb(self, kind: DisturbanceKind, rank: str) -> None:
        with self._opened(rank) as process:
            try:
                if kind is DisturbanceKind.KILL:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                elif kind is DisturbanceKind.DRAIN:
                    signal.pidfd_send_signal(process, signal.SIGTERM)
                else:
                    await self._freeze(process)
            except ProcessLookupError:
                raise CommandFailed(f"engine {rank} does not run any more") from None

    async def _freeze(self, process: int) -> None:
        try:
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            await asyncio.sleep(self._freeze_time)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the supervisor may have killed it
                signal.pidfd_send_signal(process, signal.SIGCONT)

    @contextlib.contextmanager
    def _opened(self, rank: str) -> Iterator[int]:
        engine = next((engine for engine in self.processes() if engine.rank == rank), None)
        if engine is None:
            raise CommandFailed(f"engine {rank} does not run any more")
        descriptor = os.pidfd_open(engine.pid)
        try:
            if self._engine(engine.pid) != engine:  # it ended before the descriptor was open
                raise CommandFailed(f"engine {rank} does not run any more")
            yield descriptor
        finally:
            os.close(descriptor)

    def _engine(self, pid: int) -> RunningEngine | None:
        variables = _environment(pid)
        rank = variables.get(environment.DATA_PARALLEL_RANK)
        if variables.get(environment.SERVICE_UID) != self._uid or rank is None or _parent(pid) != self._supervisor:
            return None
        return RunningEngine(rank, pid)


def find_service(port: int) -> tuple[int, str]:
    """Raises ConfigError if no service is there."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for pid in sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        variables = _environment(pid)
        if environment.FD in variables and sockets & _sockets(pid):
            return _parent(pid), variables[environment.SERVICE_UID]
    raise ConfigError(
        f"no `kvasir up` or `kvasir serve` of this user listens at port {port} of this machine: start one"
    )


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _sockets(pid: int) -> set[str]:
    found = set()
    try:
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(descriptor))
    except OSError:  # ended, or of another user
        return set()
    return found


def _environment(pid: int) -> dict[str, str]:
    try:
        text = (_PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
    except OSError:  # ended, or of another user
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def _has_ended(pid: int) -> bool:
    # It may be a zombie that its parent has not waited for.
    return _stat(pid)[0] in ("X", "Z")


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> Sequence[str]:
    # proc_pid_stat(5): state, parent and so on; X and 0 for a process that is gone.
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "X", "0"
    return text.rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []
