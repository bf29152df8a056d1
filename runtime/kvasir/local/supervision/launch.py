"""Become a command that the kernel kills when the parent dies: python -I -S launch.py PARENT_PID COMMAND …

A program of its own with the standard library only: Python code between fork and exec is not safe in a process
with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the kernel knew
        sys.exit(1)
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
