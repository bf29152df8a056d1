"""Becomes the command it is given, having asked the kernel to be killed when its parent dies. Started by child.py.

    python -I -S launch.py PARENT_PID COMMAND …

Standard library only, and a program of its own: between fork and exec, in a process that may have threads, Python
code is not safe to run.
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
