"""Loads the formats of plug-ins, and tries each one.

A file of --tool-parser-plugin is a Python module with a list TOOL_FORMATS or REASONING_FORMATS. An entry point of
the group kvasir.tool_parsers or kvasir.reasoning_parsers names one format.
"""

import json
import logging
import runpy
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final, TypeVar

from kvasir.config.entry_points import entry_points
from kvasir.config.options import ConfigError
from kvasir.frontend.parsers.formats.descriptions import (
    Body,
    HarmonyFormat,
    Layout,
    ReasoningFormat,
    ToolFormat,
    fits,
)
from kvasir.frontend.parsers.formats.reasoning_formats import REASONING_FORMATS
from kvasir.frontend.parsers.formats.tool_formats import TOOL_FORMATS
from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, ParsedEvent, ReasoningText
from kvasir.frontend.parsers.streaming.emitter import Emitter, merged
from kvasir.frontend.parsers.streaming.output_parser import StreamingParser, read_content, read_reasoning
from kvasir.frontend.parsers.streaming.reader import Reader, Steps
from kvasir.frontend.parsers.streaming.reasoning_count import ReasoningCount
from kvasir.frontend.parsers.streaming.tool_section import ToolSections


class BadFormat(ValueError):
    """A description that does not work. The message names the format and the cause."""


def try_tool_format(described: ToolFormat) -> None:
    if not described.layouts or not all(isinstance(layout, Layout) for layout in described.layouts):
        raise BadFormat(f"the tool format {described.name} has no layouts")
    if not described.openings and not described.bare:
        raise BadFormat(f"the tool format {described.name} has no openings, and is not bare: calls cannot be found")
    for layout in described.layouts:
        if layout.body is Body.NAMED_JSON and not layout.name_end:
            raise BadFormat(f"the tool format {described.name}: a layout of NAMED_JSON needs a name_end")
    if not described.sample:
        raise BadFormat(f"the tool format {described.name} has no sample to be tried with")

    def machine(reader: Reader, emitter: Emitter, count: ReasoningCount) -> Steps[None]:
        return ToolSections(reader, emitter, described, None).read()

    events = _parsed(StreamingParser(machine, ReasoningCount()), described.sample)
    match events:
        case [CallBegun(), CallArguments(0, arguments)] if _is_object(arguments):
            return
    raise BadFormat(
        f"the sample of the tool format {described.name} has to be one call, and is parsed as {_shown(events)}"
    )


def try_reasoning_format(described: ReasoningFormat) -> None:
    if not all((*described.starts, *described.ends)) or not described.starts or not described.ends:
        raise BadFormat(f"the reasoning format {described.name} needs starts and ends, none of them empty")

    def machine(reader: Reader, emitter: Emitter, count: ReasoningCount) -> Steps[None]:
        yield from read_reasoning(reader, emitter, count, described, False)
        yield from read_content(reader, emitter)

    sample = f"{described.starts[0]}a{described.ends[0]}b"
    events = _parsed(StreamingParser(machine, ReasoningCount()), sample)
    if events != [ReasoningText("a"), ContentText("b")]:
        raise BadFormat(f"the reasoning format {described.name} parses {sample!r} as {_shown(events)}")


def _parsed(parser: StreamingParser, text: str) -> list[ParsedEvent]:
    events: list[ParsedEvent] = []
    for character in text:
        events += parser.push(character, ())
    return merged(events + parser.finish())


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _shown(events: list[ParsedEvent]) -> str:
    return ", ".join(map(repr, events)) or "nothing"


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


log = logging.getLogger(__name__)

Described = TypeVar("Described", bound=ToolFormat | ReasoningFormat | HarmonyFormat)


def choose_format(
    kind: str, flag: str, formats: Mapping[str, Described], name: str | None, template: str | None
) -> Described | None:
    """Return the format of this name; with None or "auto" the only one that fits the template, or None.

    The name "none" chooses none. `kind` ("tool") and `flag` are for messages. Raises ConfigError for another name.
    """
    if name == "none":
        log.info("%s format: none (%s)", kind, flag)
        return None
    if name is not None and name != "auto":
        if name not in formats:
            raise ConfigError(f"{flag} {name}: no {kind} format has this name (use one of {', '.join(formats)})")
        log.info("%s format: %s (%s)", kind, name, flag)
        return formats[name]
    found = [each for each in formats.values() if fits(template or "", each.markers, each.not_markers)]
    if len(found) == 1:
        marks = " and ".join(repr(marker) for marker in found[0].markers)
        log.info("%s format: %s (the chat template has %s)", kind, found[0].name, marks)
        return found[0]
    if found:
        names = ", ".join(each.name for each in found)
        log.info("%s format: none (the chat template fits several: %s; choose one with %s)", kind, names, flag)
    else:
        log.info("%s format: none (no known marks in the chat template; choose one with %s)", kind, flag)
    return None
