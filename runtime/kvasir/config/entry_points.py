"""Reads the entry points of all installed packages once: hundreds of files, and several groups are looked up."""

import functools
import importlib.metadata
import sys
from importlib.metadata import EntryPoints


def entry_points(group: str) -> EntryPoints:
    return _of_all_groups(tuple(sys.path)).select(group=group)


@functools.lru_cache(maxsize=1)
def _of_all_groups(path: tuple[str, ...]) -> EntryPoints:
    return importlib.metadata.entry_points()
