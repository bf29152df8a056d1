"""The name of a process in ps and top, for example "kvasir: engine rank 0"."""

import os
from typing import Final

# Do not write the title over the environment, which follows the arguments: operators and tests read it in /proc.
_KEEP_ENVIRONMENT: Final = "SPT_NOENV"


def set_process_title(name: str) -> None:
    """Show this process as "kvasir: NAME", as far as the length of its arguments allows."""
    os.environ[_KEEP_ENVIRONMENT] = "1"  # read by the library when it is imported
    from setproctitle import setproctitle

    setproctitle(f"kvasir: {name}")
    del os.environ[_KEEP_ENVIRONMENT]
