"""Reads one call that is written in JSON: an object with name and arguments, or the name and then the arguments."""

import json
import re
from collections.abc import Callable
from typing import Final

from kvasir.frontend.parsers.formats.descriptions import Layout
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.json_scanner import JsonScanner, Scan
from kvasir.frontend.parsers.streaming.reader import Cut, Malformed, Reader, Steps

MAX_NAME_CHARACTERS: Final = 256
_NAME: Final = re.compile(r"""[^\s<>{}()\[\]"'=,;｜]+""")
_ARGUMENTS_KEYS: Final = ("arguments", "parameters")
_OTHER_KEYS: Final = ("id", "type")
"""A call without arguments may have these."""


class ObjectCall:
    """{"name": "f", "arguments": {...}}: keys in any order. Other keys are ignored.

    The arguments are sent while they arrive when the name stands before them.
    """

    def __init__(self, reader: Reader, emitter: Emitter, *, needs_arguments: bool) -> None:
        """`needs_arguments`: an object without them is not a call."""
        self._reader = reader
        self._emitter = emitter
        self._needs_arguments = needs_arguments
        self._name: str | None = None
        self._arguments: str | None = None
        """Arguments that stood before the name."""
        self._has_arguments = False
        self._has_others = False

    def read(self) -> Steps[None]:
        reader = self._reader
        yield from reader.expect("{")
        while True:
            yield from reader.skip_space()
            key = yield from json_string(reader)
            yield from reader.skip_space()
            yield from reader.expect(":")
            yield from reader.skip_space()
            yield from self._value(key)
            yield from reader.skip_space()
            if (yield from reader.expect(",", "}")) == "}":
                break
        if self._name is None:
            raise Malformed
        if not self._has_arguments:
            if self._needs_arguments or self._has_others:
                raise Malformed
            self._emitter.begin_call(self._name)
            self._emitter.arguments("{}")

    def _value(self, key: str) -> Steps[None]:
        if key == "name" and self._name is None:
            self._name = yield from json_string(self._reader)
            if not is_name(self._name):
                raise Malformed
            if self._arguments is not None:
                send_call(self._reader, self._emitter, self._name, self._arguments)
        elif key in _ARGUMENTS_KEYS and not self._has_arguments:
            self._has_arguments = True
            if self._name is None:
                self._arguments = yield from argument_text(self._reader)
            else:
                yield from send_arguments(self._reader, self._emitter, self._name)
        else:
            self._has_others = self._has_others or key not in _OTHER_KEYS
            yield from json_value(self._reader, _drop)


class NamedCall:
    """The name, a mark, and the arguments as JSON."""

    def __init__(self, reader: Reader, emitter: Emitter, layout: Layout) -> None:
        self._reader = reader
        self._emitter = emitter
        self._layout = layout

    def read(self) -> Steps[None]:
        reader, layout = self._reader, self._layout
        name = yield from call_name(reader)
        if layout.name_end_is_optional:
            yield from reader.skip_space()
            if (yield from reader.accept(layout.name_end)) is None and (yield from reader.peek()) != "{":
                raise Malformed
        else:
            yield from reader.expect(layout.name_end)
        yield from reader.skip_space()
        yield from send_arguments(reader, self._emitter, name)


def call_name(reader: Reader) -> Steps[str]:
    """Read the name of a function that stands without quotes."""
    return (yield from reader.match(_NAME, MAX_NAME_CHARACTERS))


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a function."""
    return 0 < len(text) <= MAX_NAME_CHARACTERS and _encodes(text)


def _encodes(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair: JSON escapes can write one."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def send_arguments(reader: Reader, emitter: Emitter, name: str) -> Steps[None]:
    """Read the arguments of a call whose name is known, and send both."""
    if (yield from reader.peek()) == "{":
        send_call(reader, emitter, name, "")
        yield from json_value(reader, lambda text: _send(reader, emitter, text))
    else:
        text = yield from argument_text(reader)
        send_call(reader, emitter, name, text)


def send_call(reader: Reader, emitter: Emitter, name: str, arguments: str) -> None:
    """Send the name and the arguments so far. The text that was read can no longer be content."""
    emitter.begin_call(name)
    _send(reader, emitter, arguments)


def _send(reader: Reader, emitter: Emitter, arguments: str) -> None:
    emitter.arguments(arguments)
    reader.record()


def argument_text(reader: Reader) -> Steps[str]:
    """Read a JSON value and return it as a JSON object: null is {}, and a string may hold the text of an object."""
    parts: list[str] = []
    yield from json_value(reader, parts.append)
    text = "".join(parts)
    if text == "null":
        return "{}"
    if text.startswith('"'):
        text = json.loads(text).strip()
        if not text.startswith("{") or JsonScanner().scan(text, 0) != (len(text), Scan.DONE) or not _encodes(text):
            raise Malformed
    if not text.startswith("{"):
        raise Malformed
    return text


def json_string(reader: Reader) -> Steps[str]:
    """Read a JSON string and return its value."""
    if (yield from reader.peek()) != '"':
        raise Malformed
    parts: list[str] = []
    yield from json_value(reader, parts.append)
    return str(json.loads("".join(parts)))


def json_value(reader: Reader, sink: Callable[[str], None]) -> Steps[None]:
    """Read a JSON value, and pass its text on as it arrives. Raises Malformed at the first wrong character."""
    scanner = JsonScanner()
    while True:
        end, state = scanner.scan(reader.buffer, reader.position)
        sink(reader.take_to(end))
        if state is Scan.DONE:
            return
        if state is Scan.FAILED:
            raise Malformed
        if reader.ended:
            raise Cut
        yield


def _drop(text: str) -> None:
    pass
