"""Finds what other packages add, by their entry points: classes of workers and parsers."""

import functools
import importlib.metadata
import sys
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, Final

from kvasir.config.options import ConfigError, flag_of

# Groups of entry points: classes with the parameters of Worker, and classes with one parameter, the worker.
WORKERS: Final = "kvasir.workers"
EXTENSIONS: Final = "kvasir.worker_extensions"


def entry_points(group: str) -> EntryPoints:
    found: EntryPoints = _of_all_groups(tuple(sys.path)).select(group=group)
    return found


@functools.lru_cache(maxsize=1)  # hundreds of files, and several groups are looked up
def _of_all_groups(path: tuple[str, ...]) -> Any:  # before Python 3.12, another class than EntryPoints
    return importlib.metadata.entry_points()


def plugin(group: str, name: str, option_name: str) -> Any:
    """Return the object of an entry point. Raises ConfigError if no package has one of this name."""
    return plugin_entry(group, name, option_name).load()


def plugin_entry(group: str, name: str, option_name: str) -> EntryPoint:
    """Return the entry point without an import. Raises ConfigError if no package has one of this name."""
    found = entry_points(group)
    for entry in found:
        if entry.name == name:
            return entry
    known = ", ".join(sorted(entry.name for entry in found)) or "none"
    raise ConfigError(
        f"{flag_of(option_name)} {name}: no installed package has this entry point in the group {group} "
        f"(installed: {known})"
    )
