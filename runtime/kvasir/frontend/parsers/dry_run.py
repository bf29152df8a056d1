"""Tries a plug-in's format with a sample, so that mistakes in it are found at start."""

import json

from kvasir.frontend.parsers.formats.descriptions import Body, Layout, ReasoningFormat, ToolFormat
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
