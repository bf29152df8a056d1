"""Finds the classes that packages add to workers: entry points of --worker-cls and --worker-extension-cls."""

from importlib.metadata import EntryPoint
from typing import Any, Final

from kvasir.config.entry_points import entry_points
from kvasir.config.options import ConfigError, flag_of

# Groups of entry points: classes with the parameters of Worker, and classes with one parameter, the worker.
WORKERS: Final = "kvasir.workers"
EXTENSIONS: Final = "kvasir.worker_extensions"


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
