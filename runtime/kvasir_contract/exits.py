"""The exit codes of Kvasir's processes."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1  # unexpected; a restart may help
    USER_ERROR = 2  # an option, a setting or the model; a restart does not help
    INTERRUPTED = 130  # Ctrl-C, as shells report it
    BROKEN_PIPE = 141  # the reader closed the output, as shells report it


KILLED: Final = 137  # Kubernetes' exit code for SIGKILL
