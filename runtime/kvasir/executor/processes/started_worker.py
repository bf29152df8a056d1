"""A worker process as the engine sees it. One thread reads its control socket, one waits for its end."""

import contextlib
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from kvasir import version
from kvasir.config.options import ConfigError
from kvasir.executor.processes.rendezvous import descriptor_of
from kvasir.executor.processes.worker_messages import (
    MAX_PACKET_BYTES,
    FromWorker,
    WorkerError,
    WorkerSetup,
    decode_from_worker,
    encode,
)

log = logging.getLogger(__name__)

# a C signal handler writes the stack, even while torch computes
STACK_SECONDS: Final = 0.5
_STACK_PAUSE_SECONDS: Final = 0.02  # without a write for so long, the stack is complete
_LAST_MESSAGE_SECONDS: Final = 1.0  # An ended worker's child may keep the control socket open.
_PACKET_OVERHEAD_BYTES: Final = 32  # the kernel's, in a packet socket
_SHOWN_FRAMES: Final = 3
_PACKAGE: Final = str(Path(version.__file__).parent) + "/"
_FRAME: Final = re.compile(r'File "(.*)", line (\d+) in (\S+)')
_STOPPED: Final = (os.CLD_STOPPED, os.CLD_TRAPPED)


class RunningWorker(Protocol):
    rank: int
    pid: int
    ended: threading.Event

    def watch(
        self,
        received: Callable[[int, FromWorker], None],
        ended: Callable[[int, str, WorkerError | None], None],
        stopped: Callable[[int], None],
        patience: float,
    ) -> None: ...

    @property
    def is_stopped(self) -> bool: ...

    def place(self) -> str: ...

    def dismiss(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


StartWorker = Callable[[WorkerSetup, int], RunningWorker]


class StartedWorker:
    """A child process. The kernel kills it when the thread that created it ends."""

    def __init__(self, setup: WorkerSetup, threads: int) -> None:
        """Raises ConfigError if the model's config.json is too large for a message."""
        self.rank = setup.rank
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET_BYTES)
        self._stop_timer: threading.Timer | None = None
        self.ended = threading.Event()
        self._asking = threading.Lock()
        self._closed = False
        self._stacks, stacks_end = os.pipe()
        setup = msgspec.structs.replace(setup, stack_descriptor=stacks_end)
        packet = _checked(encode(setup), self._control)
        inherited = [theirs.fileno(), stacks_end, *setup.handle.descriptors]
        if (meeting := descriptor_of(setup.rendezvous)) is not None:
            inherited.append(meeting)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvasir.executor.processes.worker_process", str(theirs.fileno())],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )
        os.close(stacks_end)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        with contextlib.suppress(ConnectionError):  # `watch` reports the end
            self._control.send(packet)

    def watch(
        self,
        received: Callable[[int, FromWorker], None],
        ended: Callable[[int, str, WorkerError | None], None],
        stopped: Callable[[int], None],
        patience: float,
    ) -> None:
        """Start the threads. Each callback gets the rank.

        `received`: each message. `ended`: how it ended, and its error. `stopped`: SIGSTOP for `patience` seconds.
        """
        errors: list[WorkerError | None] = []

        def read() -> None:
            errors.append(receive_all(self._control, lambda message: received(self.rank, message)))

        def wait() -> None:
            how = self._wait(stopped, patience)
            reader.join(_LAST_MESSAGE_SECONDS)
            self.ended.set()
            ended(self.rank, how, errors[0] if errors else None)

        reader = threading.Thread(target=read, name=f"control of worker {self.rank}", daemon=True)
        reader.start()
        threading.Thread(target=wait, name=f"monitor of worker {self.rank}", daemon=True).start()

    @property
    def is_stopped(self) -> bool:
        return self._stop_timer is not None

    def place(self) -> str:
        """Return this package's innermost lines in the worker's main thread; "" without an answer.

        Before the first phase the signal would end the worker.
        """
        with self._asking:
            if self._closed:
                return ""
            return places_of(read_stack(self._pidfd, self._stacks))

    def dismiss(self) -> None:
        """Let the worker end by itself."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        with self._asking:  # `place` of another thread uses the descriptors
            self._closed = True
            self._control.close()
            os.close(self._pidfd)
            os.close(self._stacks)

    def _wait(self, stopped: Callable[[int], None], patience: float) -> str:
        while True:
            try:
                result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WCONTINUED)
            except ChildProcessError:  # SIGCHLD is ignored, so the kernel keeps no status
                return "ended"
            if result is None:
                continue
            if self._stop_timer is not None:
                self._stop_timer.cancel()
                self._stop_timer = None
            if result.si_code in _STOPPED:
                log.warning("worker %d was stopped by signal %d", self.rank, result.si_status)
                self._stop_timer = threading.Timer(patience, stopped, [self.rank])
                self._stop_timer.daemon = True
                self._stop_timer.start()
            elif result.si_code != os.CLD_CONTINUED:
                break
        if result.si_code == os.CLD_EXITED:
            self._process.returncode = result.si_status
            return f"ended with exit code {result.si_status}"
        self._process.returncode = -result.si_status
        return f"was killed by {_name(result.si_status)}"


def _checked(packet: bytes, control: socket.socket) -> bytes:
    # Raises ConfigError if the control socket cannot carry it.
    buffer = control.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    limit = min(MAX_PACKET_BYTES, buffer - _PACKET_OVERHEAD_BYTES)
    if len(packet) > limit:
        raise ConfigError(
            f"the settings of a worker process take {len(packet)} bytes with config.json of the model, and at most "
            f"{limit} can be sent: remove from config.json what the model does not need, or raise sysctl "
            f"net.core.wmem_max up to {MAX_PACKET_BYTES}"
        )
    return packet


def receive_all(control: socket.socket, received: Callable[[FromWorker], None]) -> WorkerError | None:
    """Pass messages on until the control socket ends; return the worker's error."""
    failure: WorkerError | None = None
    with contextlib.suppress(OSError):
        while packet := control.recv(MAX_PACKET_BYTES):
            message = decode_from_worker(packet)
            if isinstance(message, WorkerError):
                failure = failure or message
            else:
                received(message)
    return failure


def read_stack(pidfd: int, pipe: int) -> str:
    while select.select([pipe], [], [], 0)[0] and os.read(pipe, 65536):
        pass  # a stack that came too late
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
    dump = b""
    while select.select([pipe], [], [], STACK_SECONDS if not dump else _STACK_PAUSE_SECONDS)[0]:
        part = os.read(pipe, 65536)
        if not part:
            break
        dump += part
    return dump.decode(errors="replace")


def wait_for_end(workers: Sequence[RunningWorker], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    return all(worker.ended.wait(max(0.0, deadline - time.monotonic())) for worker in workers)


def places_of(dump: str) -> str:
    """Return this package's innermost lines in a stack of faulthandler."""
    frames = [match.groups() for match in _FRAME.finditer(dump)]
    own = [
        f"{file.removeprefix(_PACKAGE)}:{line} ({function})"
        for file, line, function in frames
        if file.startswith(_PACKAGE)
    ]
    return " ← ".join(own[:_SHOWN_FRAMES])


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
