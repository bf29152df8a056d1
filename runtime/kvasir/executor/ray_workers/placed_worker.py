"""A worker that Ray has placed, as the engine sees it."""

import contextlib
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from kvasir.executor.processes.rendezvous import descriptor_of
from kvasir.executor.processes.started_worker import places_of, read_stack, receive_all
from kvasir.executor.processes.worker_messages import FromWorker, WorkerError, WorkerPhase, WorkerSetup
from kvasir.executor.ray_workers.cluster import ray, reason_of
from kvasir.executor.ray_workers.handover import HandoverListener, hand_over
from kvasir_contract.reasons import Reason

log = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 0.5  # between checks of a worker that has not connected
_REASON_SECONDS: Final = 0.8  # for Ray's reason; the engine waits a little longer
_STOPPED: Final = ("T", "t")


class PlacedWorker:
    def __init__(
        self, setup: WorkerSetup, start: Callable[[str], tuple[Any, Any]], closed: Callable[[], None]
    ) -> None:
        """`start` gets the address for the worker; it returns Ray's actor and its run."""
        self.rank = setup.rank
        self.pid = 0
        self.ended = threading.Event()
        self._closed = closed
        self._asking = threading.Lock()
        self._stacks, stacks_end = os.pipe()
        self._setup = _with_own_descriptors(setup, stacks_end)
        self._control: socket.socket | None = None
        self._pidfd = -1
        self._listener = HandoverListener()
        self._actor, self._run = start(self._listener.address)

    def watch(
        self,
        received: Callable[[int, FromWorker], None],
        ended: Callable[[int, str, WorkerError | None], None],
        stopped: Callable[[int], None],
        patience: float,
    ) -> None:
        # Ray does not report `stopped`.

        def follow() -> None:
            error = None
            if (control := self._connected()) is not None:
                error = receive_all(control, lambda message: received(self.rank, message))
            how, cause = self._end()
            self.ended.set()
            ended(self.rank, how, error or cause)

        threading.Thread(target=follow, name=f"control of worker {self.rank}", daemon=True).start()

    @property
    def is_stopped(self) -> bool:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in _STOPPED
        except OSError:
            return False

    def place(self) -> str:
        with self._asking:
            return places_of(read_stack(self._pidfd, self._stacks)) if self._pidfd >= 0 else ""

    def dismiss(self) -> None:
        """Let Ray end the worker, so that it does not report a crash."""
        with contextlib.suppress(Exception):  # Ray or the actor is gone
            ray.kill(self._actor)

    def kill(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.dismiss()

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        os.close(self._stacks)
        self._closed()

    def _connected(self) -> socket.socket | None:
        """Return the control socket after the handover; None if the worker ended before."""
        try:
            while (found := self._listener.accept(_CHECK_SECONDS)) is None:
                if ray.wait([self._run], timeout=0)[0]:
                    return None
            self._control, self.pid = found
            self._pidfd = os.pidfd_open(self.pid)
            hand_over(self._control, self._setup)
            return self._control
        except Exception as error:  # an error of this thread would let the engine wait
            log.warning("worker %d ended before it had its settings: %s", self.rank, error)
            return None
        finally:
            self._listener.close()
            _close_descriptors(self._setup)

    def _end(self) -> tuple[str, WorkerError | None]:
        """Return how the process ended, and Ray's error."""
        how, cause = "ended", None
        try:
            ray.get(self._run, timeout=_REASON_SECONDS)
        except ray.exceptions.GetTimeoutError:
            pass  # Ray has not noticed it yet
        except Exception as error:
            text = reason_of(error)
            how = f"ended (Ray: {text})"
            if isinstance(error, ray.exceptions.OutOfMemoryError):
                cause = WorkerError(Reason.OUT_OF_MEMORY, f"worker {self.rank} {how}", WorkerPhase.START.label)
        self.dismiss()
        if self._pidfd >= 0 and not select.select([self._pidfd], [], [], _REASON_SECONDS)[0]:
            self.kill()
            select.select([self._pidfd], [], [], _REASON_SECONDS)
        return how, cause


def _with_own_descriptors(setup: WorkerSetup, stack_descriptor: int) -> WorkerSetup:
    # The engine closes its own descriptors earlier.
    handle = setup.handle
    segment, requests, replies = map(os.dup, handle.descriptors)
    meeting = descriptor_of(setup.rendezvous)
    return msgspec.structs.replace(
        setup,
        handle=msgspec.structs.replace(handle, segment=segment, requests=requests, replies=replies),
        rendezvous=None if meeting is None else os.dup(meeting),
        stack_descriptor=stack_descriptor,
    )


def _close_descriptors(setup: WorkerSetup) -> None:
    meeting = descriptor_of(setup.rendezvous)
    rendezvous = () if meeting is None else (meeting,)
    for descriptor in (*setup.handle.descriptors, setup.stack_descriptor, *rendezvous):
        os.close(descriptor)
