"""Loads the formats of plug-ins, and tries each one.

A file of --tool-parser-plugin is a Python module with a list TOOL_FORMATS or REASONING_FORMATS. An entry point of
the group kvasir.tool_parsers or kvasir.reasoning_parsers names one format.
"""

import runpy
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

from kvasir.config.entry_points import entry_points
from kvasir.config.options import ConfigError
from kvasir.frontend.parsers.dry_run import BadFormat, try_reasoning_format, try_tool_format
from kvasir.frontend.parsers.formats.descriptions import HarmonyFormat, ReasoningFormat, ToolFormat
from kvasir.frontend.parsers.formats.reasoning_formats import REASONING_FORMATS
from kvasir.frontend.parsers.formats.tool_formats import TOOL_FORMATS

TOOL_GROUP: Final = "kvasir.tool_parsers"
REASONING_GROUP: Final = "kvasir.reasoning_parsers"
DOCUMENTATION: Final = "docs/design/adding-a-parser.md"


class KnownFormats:
    """All formats by name: Kvasir's own, and those of plug-ins."""

    def __init__(self, files: Sequence[Path] = (), found: Iterable[EntryPoint] | None = None) -> None:
        """`found`: entry points; None: those of the installed packages. Raises ConfigError."""
        self.tools: dict[str, ToolFormat | HarmonyFormat] = {each.name: each for each in TOOL_FORMATS}
        self.reasoning: dict[str, ReasoningFormat | HarmonyFormat] = {each.name: each for each in REASONING_FORMATS}
        for entry in _entry_points() if found is None else found:
            self._add(_loaded(entry), f"the entry point {entry.name} ({entry.value}) of the group {entry.group}")
        for file in files:
            where = f"--tool-parser-plugin {file}"
            for described in _formats_of(file, where):
                self._add(described, where)

    def _add(self, described: Any, where: str) -> None:
        try:
            if isinstance(described, ToolFormat):
                _check_name(described.name, self.tools)
                try_tool_format(described)
                self.tools[described.name] = described
            elif isinstance(described, ReasoningFormat):
                _check_name(described.name, self.reasoning)
                try_reasoning_format(described)
                self.reasoning[described.name] = described
            else:
                raise BadFormat(f"{described!r} is neither a ToolFormat nor a ReasoningFormat")
        except BadFormat as error:
            raise ConfigError(f"{where}: {error} (see {DOCUMENTATION})") from None


def _check_name(name: str, known: dict[str, Any]) -> None:
    if name in known or name in ("auto", "none"):
        raise BadFormat(f"the name {name} is taken: choose another one")


def _entry_points() -> list[EntryPoint]:
    return [entry for group in (TOOL_GROUP, REASONING_GROUP) for entry in entry_points(group)]


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise ConfigError(
            f"the entry point {entry.name} ({entry.value}) of the group {entry.group} cannot be loaded "
            f"({type(error).__name__}: {error}): repair or uninstall its package"
        ) from error


def _formats_of(file: Path, where: str) -> list[Any]:
    if not file.is_file():
        raise ConfigError(f"{where}: there is no such file")
    try:
        names = runpy.run_path(str(file), run_name=f"kvasir_plugin_{file.stem}")
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "vllm":
            cause = f"it is a plug-in for vLLM, whose ToolParserManager Kvasir does not have; {cause}"
        raise ConfigError(f"{where} cannot be imported: {cause} (see {DOCUMENTATION})") from error
    formats = [*names.get("TOOL_FORMATS", ()), *names.get("REASONING_FORMATS", ())]
    if not formats:
        raise ConfigError(
            f"{where}: the file has neither TOOL_FORMATS nor REASONING_FORMATS, or both are empty "
            f"(see {DOCUMENTATION})"
        )
    return formats
