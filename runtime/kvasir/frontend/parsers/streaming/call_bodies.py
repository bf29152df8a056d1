"""Reads one call in JSON: an object with name and arguments, or a name and then the arguments."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

from kvasir.frontend.parsers.formats.descriptions import Layout
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.json_mender import COMMENT_ENDS, JsonMender, Scan
from kvasir.frontend.parsers.streaming.reader import Cut, Malformed, Reader, Steps

MAX_NAME_CHARACTERS: Final = 256
_NAME: Final = re.compile(r"""[^\s<>{}()\[\]"'=,;｜]+""")
_BARE_KEY: Final = re.compile(r"[^\W\d]+")
_ARGUMENTS_KEYS: Final = ("arguments", "parameters")
_OTHER_KEYS: Final = ("id", "type")  # a call without arguments may have these
_FENCES: Final = ("```", "```json", "```xml", "```python", "```tool_call", "```tool_code")


class ObjectCall:
    """{"name": "f", "arguments": {...}}, keys in any order; {"type": "function", "function": {...}} around it."""

    def __init__(self, out: "CallOutput", stops: Sequence[str], *, needs_arguments: bool) -> None:
        """`stops`: marks that end the call. `needs_arguments`: an object without them is not a call."""
        self._reader = out.reader
        self._out = out
        self._stops = stops
        self._needs_arguments = needs_arguments
        self._name: str | None = None
        self._arguments: str | None = None  # arguments before the name
        self._has_arguments = False
        self._has_others = False
        self._is_inner = False

    def read(self) -> Steps[None]:
        yield from self._members()
        if self._name is None:
            raise Malformed
        if not self._has_arguments:
            if self._needs_arguments or self._has_others:
                raise Malformed
            self._out.whole_call(self._name, "{}")

    def _members(self) -> Steps[None]:
        reader = self._reader
        yield from reader.expect("{")
        while True:
            yield from skip_comments(reader, self._stops)
            if (yield from reader.accept("}")) is not None:  # a surplus comma before it
                break
            key = yield from _key(reader)
            yield from skip_comments(reader, self._stops)
            yield from reader.expect(":")
            yield from skip_comments(reader, self._stops)
            yield from self._value(key)
            yield from skip_comments(reader, self._stops)
            if self._has_arguments and (yield from reader.follows(*self._stops)):
                break
            if (yield from reader.expect(",", "}")) == "}":
                break

    def _value(self, key: str) -> Steps[None]:
        is_function = key == "function" and self._name is None and not self._is_inner
        if is_function and (yield from self._reader.peek()) == "{":
            self._is_inner = True
            yield from self._members()
        elif (key == "name" or is_function) and self._name is None:
            self._name = yield from json_string(self._reader)
            if not is_name(self._name):
                raise Malformed
            if self._arguments is not None:
                self._out.whole_call(self._name, self._arguments)
        elif key in _ARGUMENTS_KEYS and not self._has_arguments:
            self._has_arguments = True
            if self._name is None:
                self._arguments = yield from argument_text(self._reader, self._stops)
            else:
                yield from self._out.read_arguments(self._name, self._stops)
        else:
            self._has_others = self._has_others or key not in _OTHER_KEYS
            yield from json_value(self._reader, _drop)


class NamedCall:
    def __init__(self, out: "CallOutput", layout: Layout, stops: Sequence[str]) -> None:
        self._out = out
        self._layout = layout
        self._stops = stops

    def read(self) -> Steps[None]:
        reader, layout = self._out.reader, self._layout
        name = yield from call_name(reader)
        if layout.id_mark:
            yield from reader.skip_space()
            if (yield from reader.accept(layout.id_mark)):
                yield from reader.skip_space()
                if (yield from reader.follows(layout.name_end)) is None:
                    yield from call_name(reader)
        if layout.name_end_is_optional:
            yield from reader.skip_space()
            if (yield from reader.accept(layout.name_end)) is None and (yield from reader.peek()) != "{":
                raise Malformed
        else:
            yield from reader.expect(layout.name_end)
        yield from reader.skip_space()
        yield from self._out.open_fence()
        if (yield from reader.follows(*self._stops)):
            self._out.whole_call(name, "{}")
        else:
            yield from self._out.read_arguments(name, self._stops)


class CallOutput:
    def __init__(self, reader: Reader, emitter: Emitter, names: Collection[str] | None) -> None:
        """`names`: the offered functions; None: any."""
        self.reader = reader
        self._emitter = emitter
        self._names = names
        self.is_fenced = False  # calls in a code block

    def open_fence(self) -> Steps[None]:
        if (yield from self.reader.accept(*_FENCES)):
            self.is_fenced = True
            yield from self.reader.skip_space()

    def begin(self, name: str) -> None:
        self._emitter.begin_call(name, is_offered=self._names is None or name in self._names)

    def arguments(self, text: str) -> None:
        self._emitter.arguments(text)
        if self._emitter.is_call_sent:
            self.reader.record()

    def whole_call(self, name: str, arguments: str) -> None:
        self.begin(name)
        self.arguments(arguments)
        self.end()

    def end(self) -> None:
        self._emitter.arguments_are_whole()

    def read_arguments(self, name: str, stops: Sequence[str]) -> Steps[None]:
        """Read JSON arguments up to their end or a mark of `stops`."""
        if (yield from self.reader.peek()) == "{":
            self.begin(name)
            yield from json_value(self.reader, self.arguments, stops)
            self.end()
        else:
            self.whole_call(name, (yield from argument_text(self.reader, stops)))


def skip_comments(reader: Reader, stops: Sequence[str] = ()) -> Steps[None]:
    yield from reader.skip_space()
    while not reader.is_empty and (mark := (yield from reader.accept(*COMMENT_ENDS))):
        yield from reader.skip_through(COMMENT_ENDS[mark], stops)
        yield from reader.skip_space()


def call_name(reader: Reader) -> Steps[str]:
    return (yield from reader.match(_NAME, MAX_NAME_CHARACTERS))


def is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARACTERS and _encodes(text)


def _encodes(text: str) -> bool:
    # JSON escapes can write half of a surrogate pair
    return not any("\ud800" <= character <= "\udfff" for character in text)


def argument_text(reader: Reader, stops: Sequence[str] = ()) -> Steps[str]:
    """Return arguments as a JSON object: null is {}, and a string may hold an object's text."""
    parts: list[str] = []
    yield from json_value(reader, parts.append, stops)
    text = "".join(parts)
    if text.startswith('"'):
        text = _mended(json.loads(text).strip() or "null")
    if text == "null":
        return "{}"
    if not text.startswith("{"):
        raise Malformed
    return text


def _mended(text: str) -> str:
    end, mended, state = JsonMender().scan(text, 0, is_end=True)
    if state is not Scan.DONE or end < len(text) or not _encodes(mended):
        raise Malformed
    return mended


def _key(reader: Reader) -> Steps[str]:
    if (yield from reader.peek()) in "\"'":
        return (yield from json_string(reader))
    return (yield from reader.match(_BARE_KEY, MAX_NAME_CHARACTERS))


def json_string(reader: Reader) -> Steps[str]:
    if (yield from reader.peek()) not in "\"'":
        raise Malformed
    parts: list[str] = []
    yield from json_value(reader, parts.append)
    return str(json.loads("".join(parts)))


def json_value(reader: Reader, sink: Callable[[str], None], stops: Sequence[str] = ()) -> Steps[None]:
    """Read a JSON value and send valid JSON to `sink` while it arrives. Raises Malformed."""
    mender = JsonMender(stops)
    while True:
        end, text, state = mender.scan(reader.buffer, reader.position, reader.ended)
        reader.take_to(end)
        sink(text)
        if state is Scan.DONE:
            return
        if state is Scan.FAILED:
            raise Malformed
        if reader.ended:
            raise Cut
        yield


def _drop(text: str) -> None:
    pass
