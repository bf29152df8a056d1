"""Sets the title of this process in ps and top."""

import os
from typing import Final

# Keep the environment, after the arguments: operators and tests read it in /proc.
_KEEP_ENVIRONMENT: Final = "SPT_NOENV"


def set_process_title(name: str) -> None:
    """Show this process as "kvasir: NAME" in ps, as far as its arguments leave room."""
    os.environ[_KEEP_ENVIRONMENT] = "1"  # before the library is imported
    from setproctitle import setproctitle

    setproctitle(f"kvasir: {name}")
    del os.environ[_KEEP_ENVIRONMENT]
