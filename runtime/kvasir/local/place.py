"""The addresses of one service on this machine: listening socket, link, ops ports and private directory.

`open_place` takes all of it before a process starts, so that a port in use is reported at once. The environments
replace those of Kubernetes.
"""

import fcntl
import os
import random
import shutil
import socket
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from kvasir.config.options import ConfigError
from kvasir.local.log_directory import LogDirectory
from kvasir.process.listening import listen_at, listen_on, remove_socket_file, url
from kvasir_contract import environment

# TMPDIR may be long, and the path of an ipc socket has at most 107 characters
PARENT: Final = Path("/tmp")
_PREFIX: Final = "kvasir-"
_LOCK: Final = "lock"


class PrivateDirectory:
    """Readable by this user only (0700)."""

    def __init__(self, parent: Path = PARENT) -> None:
        _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        unlocked = self.path / "unlocked"
        self._lock = unlocked.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _LOCK)  # the name in searches: never seen without its lock

    def close(self) -> None:
        if not self._lock.closed:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.close()


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if lock.parent.lstat().st_uid != os.geteuid():
                continue
            with lock.open() as file:
                if _is_free(file):
                    shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # another process is removing it
            continue


def _is_free(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    service: str
    private: PrivateDirectory
    # Each frontend inherits it.
    listener: socket.socket
    # One for each frontend; every engine connects to all.
    links: tuple[str, ...]
    frontend_ops_ports: tuple[int, ...]
    engine_ops_ports: tuple[int, ...]
    # Engines that share experts meet there.
    meeting_port: int
    gpus: tuple[str, ...]
    """Named as in CUDA_VISIBLE_DEVICES, the same number for each engine; empty for CPU engines."""
    log_directory: LogDirectory
    uid: str

    @property
    def logs(self) -> Path:
        # It stays after the end.
        return self.log_directory.path

    @property
    def directory(self) -> Path:
        # Private to this user, and removed at the end.
        return self.private.path

    @property
    def socket_file(self) -> str | None:
        # None for a TCP port.
        return str(self.listener.getsockname()) if self.listener.family == socket.AF_UNIX else None

    @property
    def url(self) -> str:
        if self.socket_file is not None:
            return "http://localhost"  # the name does not matter
        host, port = self.listener.getsockname()[:2]
        if host == "::" and self.listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            host = "::1"
        elif host in ("0.0.0.0", "::"):
            host = LOOPBACK
        return url(host, port)

    def frontend_env(self, number: int) -> dict[str, str]:
        return {
            environment.LINK: self.links[number],
            environment.FD: str(self.listener.fileno()),
            environment.SERVICE_UID: self.uid,
            environment.OPS_HOST: LOOPBACK,
            environment.OPS_PORT: str(self.frontend_ops_ports[number]),
        }

    def engine_env(self, rank: int) -> dict[str, str]:
        env = {
            environment.LINK: ",".join(self.links),
            environment.SERVICE_UID: self.uid,
            environment.DATA_PARALLEL_RANK: str(rank),
            environment.DATA_PARALLEL_SIZE_LOCAL: str(len(self.engine_ops_ports)),
            environment.OPS_HOST: LOOPBACK,
            environment.OPS_PORT: str(self.engine_ops_ports[rank]),
            environment.BLACK_BOX: f"{self.directory}/engine-{rank}.black-box",
        }
        if self.gpus:
            each = len(self.gpus) // len(self.engine_ops_ports)
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[rank * each : (rank + 1) * each])
        return env

    def write_secrets(self, name: str, values: Mapping[str, str]) -> Path:
        """Write a file per value, readable by this user only, and return the directory.

        Raises ConfigError for a key that is not the plain name of a file: nothing is written outside the
        directory.
        """
        for key in values:
            if key in ("", ".", "..") or "/" in key or "\0" in key:
                raise ConfigError(f"a Secret's key {key[:100]!r} cannot be the name of a file: rename it")
        directory = self.directory / name
        directory.mkdir(mode=0o700)
        for key, value in values.items():
            descriptor = os.open(directory / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(value)
        return directory

    def stop_listening(self) -> None:
        # When no frontend is started any more, connections would wait here without being accepted.
        if self.listener.fileno() >= 0:
            remove_socket_file(self.listener)
            self.listener.close()

    def close(self) -> None:
        self.stop_listening()
        self.private.close()
        self.log_directory.close()


def open_place(
    service: str,
    *,
    host: str,
    port: int,
    frontends: int,
    engines: int,
    gpus: Sequence[str] = (),
    uds: str | None = None,
) -> Place:
    """Listen at `uds` if it is given, else on host and port.

    Raises ConfigError if that fails or logs cannot be written.
    """
    listener = listen_on(host, port) if uds is None else listen_at(uds)
    try:
        address = listener.getsockname()[1] if uds is None else Path(uds).resolve().as_posix().replace("/", "-")
        # No other service here has this name and address.
        logs = LogDirectory(f"{service}-{address}".replace("--", "-"))
        *ops_ports, meeting_port = _free_ports(frontends + engines + 1)
        private = PrivateDirectory()
    except BaseException:
        remove_socket_file(listener)
        listener.close()
        raise
    return Place(
        service=service,
        private=private,
        listener=listener,
        links=tuple(f"ipc://{private.path}/f{number}" for number in range(frontends)),
        frontend_ops_ports=tuple(ops_ports[:frontends]),
        engine_ops_ports=tuple(ops_ports[frontends:]),
        meeting_port=meeting_port,
        gpus=tuple(gpus),
        log_directory=logs,
        uid=str(uuid.uuid4()),
    )


def _free_ports(count: int) -> tuple[int, ...]:
    # Below the ports that the kernel gives to outgoing connections.
    free: list[int] = []
    for port in random.sample(range(20000, 32000), 2000):
        if len(free) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        free.append(port)
    if len(free) < count:
        raise ConfigError(f"there are no {count} free ports between 20000 and 32000 for probes")
    return tuple(free)
