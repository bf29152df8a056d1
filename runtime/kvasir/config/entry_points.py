"""Reads the entry points of all installed packages once: hundreds of files, and several groups are looked up."""

import functools
import importlib.metadata
import sys
from importlib.metadata import EntryPoints
from typing import Any


def entry_points(group: str) -> EntryPoints:
    found: EntryPoints = _of_all_groups(tuple(sys.path)).select(group=group)
    return found


@functools.lru_cache(maxsize=1)
def _of_all_groups(path: tuple[str, ...]) -> Any:  # before Python 3.12, another class than EntryPoints
    return importlib.metadata.entry_points()
