"""The exit codes of Kvasir's processes."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    """An unexpected error: starting the process again may help."""
    USER_ERROR = 2
    """An option, a setting or the model cannot be used: starting the process again does not help."""
    INTERRUPTED = 130
    """Ctrl-C, as shells report it."""
    BROKEN_PIPE = 141
    """The reader of the output went away, as shells report it."""


KILLED: Final = 137
"""The code that Kubernetes reports for a process ended by SIGKILL."""
