"""The private directory of one service, for sockets and Secrets.

The service locks it. A start removes directories without a lock, as kill -9 leaves them.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, TextIO

# TMPDIR may be long, and the path of an ipc socket has at most 107 characters
PARENT: Final = Path("/tmp")
_PREFIX: Final = "kvasir-"
_LOCK: Final = "lock"


class PrivateDirectory:
    """Readable by this user only (0700)."""

    def __init__(self, parent: Path = PARENT) -> None:
        _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        unlocked = self.path / "unlocked"
        self._lock = unlocked.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _LOCK)  # the name in searches: never seen without its lock

    def close(self) -> None:
        if not self._lock.closed:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.close()


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if lock.parent.lstat().st_uid != os.geteuid():
                continue
            with lock.open() as file:
                if _is_free(file):
                    shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # another process is removing it
            continue


def _is_free(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
