"""How a process ends by an error: log entry, failure report and exit code."""

import logging
import sys
from typing import Final

from kvasir.config.options import ConfigError
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import Failure, report_failure
from kvasir_contract.reasons import Reason

# a new start does not help
_LASTING: Final = frozenset({Reason.INVALID_SPEC, Reason.MODEL_NOT_FOUND})
_LESS_MEMORY: Final = (
    "give the process more memory, or lower --kv-cache-memory-bytes (on a GPU --gpu-memory-utilization), "
    "--max-model-len or --max-num-seqs"
)


class FailureError(Exception):
    """Another process of this engine failed; its log has the details."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure_of(error: BaseException) -> Failure:
    if isinstance(error, FailureError):
        return error.failure
    if isinstance(error, ConfigError):
        return Failure(error.reason, str(error))
    if _is_out_of_memory(error):
        text = str(error).strip().partition("\n")[0]
        return Failure(Reason.OUT_OF_MEMORY, f"out of memory ({text or type(error).__name__}): {_LESS_MEMORY}")
    return Failure(Reason.CRASH_LOOPING, f"{type(error).__name__}: {error}")


def error_of(failure: Failure) -> Exception:
    return ConfigError(failure.message) if failure.reason is ConfigError.reason else FailureError(failure)


def log_failure(log: logging.Logger, error: BaseException, where: str) -> None:
    """Log one line for a user's mistake or another process's failure; otherwise a traceback."""
    if isinstance(error, ConfigError | FailureError):
        log.error("%s", error, exc_info=error if log.isEnabledFor(logging.DEBUG) else None)
    else:
        log.error("%s", where, exc_info=error)


def end(failure: Failure | None) -> ExitCode:
    """Report the failure and return the exit code. Nothing may be written afterwards."""
    if failure is None:
        return ExitCode.OK
    report_failure(failure)
    return ExitCode.USER_ERROR if failure.reason in _LASTING else ExitCode.FAILED


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    # On a CPU torch raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )
