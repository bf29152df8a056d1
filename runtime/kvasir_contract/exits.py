"""The exit codes of Kvasir's processes."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1  # a restart may help
    USER_ERROR = 2  # a restart does not help
    INTERRUPTED = 130  # Ctrl-C, as in shells
    BROKEN_PIPE = 141  # as in shells


KILLED: Final = 137  # SIGKILL
