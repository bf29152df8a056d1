"""The exit codes of Kvasir's processes."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    """An unexpected error. Restarting the process may help."""
    USER_ERROR = 2
    """An option, a setting or the model cannot be used. Restarting the process does not help."""
    INTERRUPTED = 130
    """Ctrl-C, as shells report it."""
    BROKEN_PIPE = 141
    """The reader of the output closed it, as shells report it."""


KILLED: Final = 137
"""The exit code that Kubernetes reports for a process killed by SIGKILL."""
