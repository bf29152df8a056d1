"""Raises the limit of open files."""

import resource
from typing import Final

MAX_OPEN_FILES: Final = 65536


def raise_open_files_limit() -> None:
    """Raise the soft limit to the hard one: every connection holds a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
