"""Reads one call in Qwen3-Coder's XML, and writes its parameters as JSON by the tool's schema."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvasir.frontend.parsers.formats.schema_types import schema_types
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.streaming.call_bodies import MAX_NAME_CHARACTERS, CallOutput, call_name
from kvasir.frontend.parsers.streaming.python_call import python_literal
from kvasir.frontend.parsers.streaming.reader import Cut, Malformed, Marks, Reader, Steps

FUNCTION_OPENING: Final = "<function="
PARAMETER_OPENING: Final = "<parameter="
VALUE_END: Final = "</parameter>"
FUNCTION_CLOSING: Final = "</function>"
SECTION_OPENING: Final = "<tool_call>"
SECTION_CLOSING: Final = "</tool_call>"
# after an end mark; with more of it, the mark is part of the value
MAX_SPACE_CHARACTERS: Final = 64

_KEY: Final = re.compile(r"[^<>\n]+")
_FOLLOWERS: Final = (PARAMETER_OPENING, FUNCTION_CLOSING, SECTION_CLOSING)
_NEXT_CALLS: Final = (FUNCTION_OPENING, SECTION_OPENING)
_VALUE_ENDS: Final = (VALUE_END, *_FOLLOWERS, SECTION_OPENING)
_VALUE_MARKS: Final = Marks([space + end for end in _VALUE_ENDS for space in ("\r\n", "\n", "")])


class XmlCall:
    """<function=f><parameter=a>value</parameter></function>"""

    def __init__(self, out: CallOutput, tools: Mapping[str, Tool]) -> None:
        self._reader = out.reader
        self._out = out
        self._tools = tools

    def read(self) -> Steps[None]:
        reader, out = self._reader, self._out
        yield from reader.expect(FUNCTION_OPENING)
        name = yield from call_name(reader)
        yield from reader.expect(">")
        yield from reader.skip_space()
        if (yield from reader.follows(*_FOLLOWERS)) is None:  # text that mentions the mark
            raise Malformed
        out.begin(name)
        tool = self._tools.get(name)
        values = _Values(out, tool.parameters if tool else {})
        separator = "{"
        while (yield from self._another(is_first=separator == "{")):
            key = yield from reader.match(_KEY, MAX_NAME_CHARACTERS)
            yield from reader.expect(">")
            out.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            yield from values.read(key)
            separator = ", "
        out.arguments("{}" if separator == "{" else "}")
        out.end()
        yield from reader.skip_space()
        yield from reader.accept(FUNCTION_CLOSING)

    def _another(self, *, is_first: bool) -> Steps[bool]:
        """Read up to the next parameter. Return whether there is one."""
        try:
            yield from self._reader.skip_space()
            return (yield from self._reader.accept(PARAMETER_OPENING)) is not None
        except Cut:
            if self._reader.is_cut or is_first:
                raise
            return False


class _Values:
    def __init__(self, out: CallOutput, schema: dict[str, Any]) -> None:
        self._reader = out.reader
        self._out = out
        self._schema = schema
        properties = schema.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        self._seen: set[str] = set()

    def read(self, key: str) -> Steps[None]:
        self._seen.add(key)
        types = schema_types(self._properties.get(key, {}), self._schema)
        yield from self._reader.accept("\n", "\r\n")
        if types <= {"string"}:
            self._out.arguments('"')
            yield from self._text(self._send_text)
            self._out.arguments('"')
        else:
            parts: list[str] = []
            try:
                yield from self._text(parts.append)
            finally:
                self._out.arguments(typed_value("".join(parts), types))

    def _send_text(self, text: str) -> None:
        self._out.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _text(self, sink: Callable[[str], None]) -> Steps[None]:
        """Read a value without the line break before its end mark. Other marks are not consumed."""
        reader = self._reader
        while True:
            found = _VALUE_MARKS.search(reader)
            sink(reader.take_to(found.start() if found else _VALUE_MARKS.safe_end(reader)))
            if found is None:
                yield from reader.more()
                continue
            mark = found[0]
            while (is_end := self._is_end(mark)) is None:
                yield
            if not is_end:
                sink(reader.take_to(reader.position + len(mark)))
                continue
            space = len(mark) - len(mark.lstrip())
            reader.take_to(reader.position + (len(mark) if mark.endswith(VALUE_END) else space))
            return

    def _is_end(self, mark: str) -> bool | None:
        """Return whether the next mark ends the value, by the text after it; None if unknown."""
        reader = self._reader
        start = reader.position + len(mark)
        if mark.endswith(PARAMETER_OPENING):
            return self._is_other_parameter(start)
        behind = reader.buffer[start : start + MAX_SPACE_CHARACTERS + len(SECTION_CLOSING) + 1]
        follower = behind.lstrip(" \t\r\n")
        if len(behind) - len(follower) > MAX_SPACE_CHARACTERS:
            return False
        if not follower:
            return reader.ended or None
        if mark.endswith(VALUE_END):
            return _starts(follower, (*_FOLLOWERS, *_NEXT_CALLS), reader.ended)
        is_line = mark[0] in "\r\n"
        if mark.endswith(SECTION_OPENING):
            return is_line and _starts(follower, (FUNCTION_OPENING,), reader.ended)
        if is_line and behind[0] in "\r\n":  # on a line of its own
            return True
        return mark.endswith(FUNCTION_CLOSING) and _starts(follower, (SECTION_CLOSING,), reader.ended)

    def _is_other_parameter(self, start: int) -> bool | None:
        """Return whether a parameter begins after a missing end mark; None if unknown."""
        reader = self._reader
        name = _KEY.match(reader.buffer, start, start + MAX_NAME_CHARACTERS)
        end = name.end() if name else start
        if end == len(reader.buffer):
            return False if reader.ended else None
        key = name[0] if name else ""
        is_known = key in self._properties if self._properties else bool(key)
        return reader.buffer[end] == ">" and is_known and key not in self._seen


def _starts(text: str, marks: tuple[str, ...], is_end: bool) -> bool | None:
    """Return whether a text begins with a mark; None if unknown."""
    if text.startswith(marks):
        return True
    if not any(mark.startswith(text) for mark in marks):
        return False
    return is_end or None


def typed_value(text: str, types: set[str]) -> str:
    """Return a value as JSON. A value that fits no type is a string, as in vLLM."""
    word = text.strip()
    if word.lower() in ("null", "none") and ("null" in types or "string" not in types):
        return "null"
    if "string" in types:
        return json.dumps(text, ensure_ascii=False)
    if "boolean" in types and word.lower() in ("true", "false"):
        return word.lower()
    try:
        json.loads(word, parse_constant=_refuse, parse_float=_finite)
        return word
    except (ValueError, RecursionError):
        return _python_value(word) or json.dumps(text, ensure_ascii=False)


def _python_value(text: str) -> str | None:
    """Return a Python literal as JSON; None for other text."""
    reader = Reader()
    reader.feed(f"{text})")
    reader.ended = True
    steps = python_literal(reader)
    try:
        next(steps)
    except StopIteration as stop:
        return str(stop.value) if reader.position == len(text) else None
    except (Malformed, Cut):
        pass
    return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(text)
    return number
