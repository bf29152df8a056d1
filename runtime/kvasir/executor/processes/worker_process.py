"""The process of one worker: `python -m kvasir.executor.processes.worker_process FD`.

It loads the weights, then computes the frames of the ring. When the engine dies, SIGKILL from the kernel or the end
of the control socket ends the worker.
"""

import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

import msgspec

from kvasir.config.options import ConfigError
from kvasir.executor.processes.rendezvous import join
from kvasir.executor.processes.worker_messages import (
    MAX_PACKET_BYTES,
    FrameKind,
    FromWorker,
    Loaded,
    Loading,
    WorkerError,
    WorkerPhase,
    WorkerSetup,
    decode_setup,
    encode,
    name_of_worker,
    phase_of_call,
    phase_of_step,
    reporting_rank,
    step_reply,
)
from kvasir.executor.shared_memory.channel import WorkerChannel
from kvasir.executor.shared_memory.ring import PeerLostError
from kvasir.process.failures import failure_of, log_failure
from kvasir.process.process_setup import set_process_title
from kvasir.worker.split_refusal import check_split
from kvasir.worker.step import LateInput, StepInput
from kvasir.worker.worker_calls import WorkerCall
from kvasir_contract.exits import ExitCode
from kvasir_contract.logs import setup_logging

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1

# in an exchange with an ended worker: the kernel closes its connections first
_OF_LOST_PEER: Final = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_LOST_PEER_SECONDS: Final = 1.0


class WorkerProcess:
    def __init__(self, setup: WorkerSetup, control: socket.socket) -> None:
        self._setup = setup
        self._name = name_of_worker(setup.rank, setup.settings.executor)
        reporter = reporting_rank(setup.settings.executor)
        self._reports, self._samples = setup.rank == reporter, setup.rank >= reporter
        self._control = control
        self._channel = WorkerChannel(setup.handle)
        self._phase = WorkerPhase.START
        self._steps = 0
        self._read_ahead: deque[bytes] = deque()  # frames that came while a step waited for its late input
        self._steps_decoder = msgspec.msgpack.Decoder(StepInput)
        self._late_decoder = msgspec.msgpack.Decoder(LateInput)
        self._calls_decoder = msgspec.msgpack.Decoder(WorkerCall)
        self._encode = msgspec.msgpack.Encoder().encode

    def run(self) -> ExitCode:
        try:
            self._enter(WorkerPhase.START)
            from kvasir.executor.worker_host import WorkerHost  # imports torch: now failures can be reported

            setup = self._setup
            if setup.rank == 0:
                check_split(setup.model, setup.settings.max_model_len, setup.settings.executor)
            self._enter(WorkerPhase.JOIN)
            parallel = join(setup.rank, setup.rendezvous, setup.settings)
            self._host = WorkerHost(setup.settings, setup.model, parallel)
            self._enter(WorkerPhase.LOAD)
            self._host.worker.load(lambda done, total: self._send(Loading(done, total)))
            self._enter(WorkerPhase.IDLE)
            self._send(Loaded(setup.model.weights))
            self._serve()
        except PeerLostError as error:
            log.info("%s: this worker ends", error)
            return ExitCode.OK
        except Exception as error:
            self._report(error)
            return ExitCode.FAILED

    def _serve(self) -> NoReturn:
        channel = self._channel
        handlers: dict[int, Callable[[memoryview], bytes]] = {
            FrameKind.STEP: self._step,
            FrameKind.COMMAND: self._command,
            FrameKind.CALL: self._call,
        }
        while True:
            frame = self._read_ahead.popleft() if self._read_ahead else channel.requests.read()
            if frame[0] == FrameKind.LATE_INPUT:
                continue  # an earlier pipeline stage has not sampled
            body = handlers[frame[0]](memoryview(frame)[1:])
            self._enter(WorkerPhase.IDLE)
            channel.replies.write(body)

    def _step(self, frame: memoryview) -> bytes:
        step = self._steps_decoder.decode(frame)
        self._steps += 1
        self._enter(phase_of_step(step))
        output = self._host.execute(step, partial(self._late_input, step.number) if step.masked else None)
        return step_reply(output, self._reports, self._encode) if self._samples else b""

    def _late_input(self, number: int) -> LateInput:
        # Later steps may come before it.
        while True:
            frame = self._channel.requests.read()
            if frame[0] != FrameKind.LATE_INPUT:
                self._read_ahead.append(frame)
                continue
            late = self._late_decoder.decode(memoryview(frame)[1:])
            assert late.number == number, f"step {number} got the late input of step {late.number}"
            return late

    def _command(self, frame: memoryview) -> bytes:
        call = self._calls_decoder.decode(frame)
        self._enter(phase_of_call(call.method))
        value: Any = self._host.run(call)
        return self._encode(value)

    def _call(self, frame: memoryview) -> bytes:
        call = self._calls_decoder.decode(frame)
        self._enter(phase_of_call(call.method))
        return self._encode(self._host.answer(call))

    def _enter(self, phase: WorkerPhase) -> None:
        self._phase = phase
        self._channel.progress.enter(self._steps, phase)

    def _send(self, message: FromWorker) -> None:
        # Raises PeerLostError if the engine has ended.
        try:
            self._control.send(encode(message))
        except ConnectionError as error:
            raise PeerLostError(None) from error

    def _report(self, error: Exception) -> None:
        if any(text in str(error) for text in _OF_LOST_PEER):
            time.sleep(_LOST_PEER_SECONDS)  # the engine reports the peer's cause and kills this worker
        phase = self._phase.label
        log_failure(log, error, f"{self._name} failed in phase {phase}")
        failure = failure_of(error)
        named = isinstance(error, ConfigError)  # otherwise the message does not name what to change
        message = failure.message if named else f"{self._name} failed in phase {phase}: {failure.message}"
        try:
            self._send(WorkerError(failure.reason, message, phase))
        except PeerLostError:
            log.info("the engine has ended meanwhile")


def main() -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the engine handles them
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    packet = control.recv(MAX_PACKET_BYTES)
    if not packet:
        os._exit(ExitCode.OK)
    setup = decode_setup(packet)
    _die_with(setup.engine_pid)
    set_process_title(setup.log_name)
    code = serve(setup, control)
    logging.shutdown()
    os._exit(code)  # threads of libraries would hold up the end


def serve(setup: WorkerSetup, control: socket.socket) -> ExitCode:
    """Work until the engine ends or something fails. Return the exit code."""
    faulthandler.register(signal.SIGUSR1, file=setup.stack_descriptor, all_threads=False)
    os.set_inheritable(setup.stack_descriptor, False)
    setup_logging(setup.log_name, setup.log_level, setup.log_format)
    threading.Thread(target=_end_with_engine, args=[control], name="engine watch", daemon=True).start()
    return WorkerProcess(setup, control).run()


def _die_with(engine_pid: int) -> None:
    # The kernel kills this process with the engine's main thread, which started it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != engine_pid:  # the engine has ended already
        os._exit(ExitCode.OK)


def _end_with_engine(control: socket.socket) -> NoReturn:
    try:
        control.recv(1)  # ends with the engine
    finally:
        os._exit(ExitCode.OK)


if __name__ == "__main__":
    main()
