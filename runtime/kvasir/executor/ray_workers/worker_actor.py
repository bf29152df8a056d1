"""A worker in a process of Ray, with the descriptors of the engine."""

import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import NoReturn

from kvasir.executor.processes.worker_process import serve
from kvasir.executor.ray_workers.handover import take_over
from kvasir_contract.exits import ExitCode


class RayWorkerActor:
    def run(self, address: str, environment: Mapping[str, str]) -> NoReturn:
        """Raises HandoverError."""
        os.environ.update(environment)  # before torch is imported
        control, (setup, stdout, stderr) = take_over(address)
        _write_to(stdout, stderr)
        code = serve(setup, control)
        logging.shutdown()
        if code is ExitCode.OK:
            threading.Event().wait()  # Ray would report a crash: the engine has it end this process
        os._exit(code)  # the control socket closes


def _write_to(stdout: int, stderr: int) -> None:
    # instead of Ray's files
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
