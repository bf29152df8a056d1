"""Reads one call in XML, as Qwen3-Coder writes it, and makes JSON of its parameters by the tool's schema."""

import json
import re
from typing import Any, Final

from kvasir.frontend.parsers.formats.schema_types import schema_types
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.streaming.call_bodies import MAX_NAME_CHARACTERS, call_name, send_call
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.python_call import python_literal
from kvasir.frontend.parsers.streaming.reader import Cut, Malformed, Marks, Reader, Steps

FUNCTION_OPENING: Final = "<function="
PARAMETER_OPENING: Final = "<parameter="
VALUE_END: Final = "</parameter>"
FUNCTION_CLOSING: Final = "</function>"
MAX_SPACE_CHARACTERS: Final = 64
"""Whitespace behind the end of a value. With more of it, the mark is part of the value."""

_KEY: Final = re.compile(r"[^<>\n]+")
_FOLLOWERS: Final = (PARAMETER_OPENING, FUNCTION_CLOSING, "</tool_call>")
_VALUE_MARKS: Final = Marks(["\n" + VALUE_END, VALUE_END])


class XmlCall:
    """<function=f><parameter=a>value</parameter></function>. Texts are sent while they arrive."""

    def __init__(self, reader: Reader, emitter: Emitter, tools: dict[str, Tool]) -> None:
        self._reader = reader
        self._emitter = emitter
        self._tools = tools

    def read(self) -> Steps[None]:
        reader, emitter = self._reader, self._emitter
        yield from reader.expect(FUNCTION_OPENING)
        name = yield from call_name(reader)
        yield from reader.expect(">")
        send_call(reader, emitter, name, "")
        tool = self._tools.get(name)
        schema = tool.parameters if tool else {}
        separator = "{"
        while True:
            yield from reader.skip_space()
            if (yield from reader.accept(PARAMETER_OPENING)) is None:
                break
            key = yield from reader.match(_KEY, MAX_NAME_CHARACTERS)
            yield from reader.expect(">")
            emitter.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._value(schema, key)
            reader.record()
            separator = ", "
        emitter.arguments("{}" if separator == "{" else "}")
        yield from reader.accept(FUNCTION_CLOSING)

    def _value(self, schema: dict[str, Any], key: str) -> Steps[None]:
        properties = schema.get("properties")
        described = properties.get(key, {}) if isinstance(properties, dict) else {}
        types = schema_types(described, schema)
        yield from self._reader.accept("\n")
        if types <= {"string"}:
            self._emitter.arguments('"')
            yield from self._text(self._send_text)
            self._emitter.arguments('"')
        else:
            parts: list[str] = []
            try:
                yield from self._text(parts.append)
            finally:
                self._emitter.arguments(typed_value("".join(parts), types))

    def _send_text(self, text: str) -> None:
        self._emitter.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _text(self, sink: Any) -> Steps[None]:
        """Read a value to its end, without the line break before the mark there."""
        reader = self._reader
        while True:
            end = reader.buffer.find(VALUE_END, reader.position)
            if end < 0:
                sink(reader.take_to(_VALUE_MARKS.safe_end(reader)))
                yield from reader.more()
                continue
            has_break = end > reader.position and reader.buffer[end - 1] == "\n"
            mark = "\n" + VALUE_END if has_break else VALUE_END
            sink(reader.take_to(end + len(VALUE_END) - len(mark)))
            is_end = yield from self._is_end(len(mark))
            text = reader.take_to(reader.position + len(mark))
            if is_end:
                return
            sink(text)

    def _is_end(self, length: int) -> Steps[bool]:
        """Return whether an end mark of this length ends the value: another mark of the format follows on it."""
        reader = self._reader
        while True:
            start = reader.position + length
            behind = reader.buffer[start : start + MAX_SPACE_CHARACTERS + len(PARAMETER_OPENING) + 1]
            follower = behind.lstrip(" \t\r\n")
            if len(behind) - len(follower) > MAX_SPACE_CHARACTERS:
                return False
            if follower.startswith(_FOLLOWERS):
                return True
            if not any(each.startswith(follower) for each in _FOLLOWERS):
                return False
            if reader.ended:
                return True
            yield


def typed_value(text: str, types: set[str]) -> str:
    """Return a value as JSON. A text that does not fit the types is a string, as in vLLM."""
    word = text.strip()
    if word.lower() in ("null", "none") and ("null" in types or "string" not in types):
        return "null"
    if "string" in types:
        return json.dumps(text, ensure_ascii=False)
    if "boolean" in types and word.lower() in ("true", "false"):
        return word.lower()
    try:
        json.loads(word, parse_constant=_refuse)
        return word
    except (ValueError, RecursionError):
        return _python_value(word) or json.dumps(text, ensure_ascii=False)


def _python_value(text: str) -> str | None:
    """Return a Python literal as JSON, or None if it is not one."""
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
