"""Reads one call that is written in Python, f(a=1, b="x"), and makes JSON of its arguments."""

import ast
import json
import math
import re
from typing import Final

from kvasir.frontend.parsers.streaming.call_bodies import call_name, send_call
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.reader import Malformed, Reader, Steps

MAX_DEPTH: Final = 100
MAX_WORD_CHARACTERS: Final = 400
_WORD: Final = re.compile(r"[\w.+-]+")
_NUMBER: Final = re.compile(r"[-+]?[0-9.][\w.+-]*")
_WORDS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))", re.DOTALL
)
_SIMPLE_ESCAPES: Final = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": "",
    "\\": "\\", "'": "'", '"': '"', "/": "/",
}  # fmt: skip
_PLAIN: Final = {quote: re.compile(rf"[^{quote[0]}\\{end}]+") for quote, end in (
    ("'", r"\n"), ('"', r"\n"), ("'''", ""), ('"""', ""),
)}  # fmt: skip


class PythonCall:
    """f(a=1): arguments by name, values that are literals. Each argument is sent when it is complete."""

    def __init__(self, reader: Reader, emitter: Emitter) -> None:
        self._reader = reader
        self._emitter = emitter

    def read(self) -> Steps[None]:
        reader, emitter = self._reader, self._emitter
        name = yield from call_name(reader)
        yield from reader.skip_space()
        yield from reader.expect("(")
        yield from reader.skip_space()
        begun = False
        while (yield from reader.accept(")")) is None:
            key = yield from call_name(reader)
            yield from reader.skip_space()
            yield from reader.expect("=")
            value = yield from python_literal(reader)
            argument = f"{json.dumps(key, ensure_ascii=False)}: {value}"
            if begun:
                emitter.arguments(f", {argument}")
            else:
                send_call(reader, emitter, name, f"{{{argument}")
            reader.record()
            begun = True
            if (yield from reader.expect(",", ")")) == ")":
                break
            yield from reader.skip_space()
        if not begun:
            emitter.begin_call(name)
        emitter.arguments("}" if begun else "{}")


def python_literal(reader: Reader) -> Steps[str]:
    """Read a literal up to the `,` or `)` behind it, and return it as JSON."""
    parts: list[str] = []
    brackets: list[str] = []
    while True:
        yield from reader.skip_space()
        character = yield from reader.peek()
        if not brackets and character in ",)":
            break
        if character in "'\"":
            parts.append(json.dumps((yield from _string(reader)), ensure_ascii=False))
        elif character in "([{":
            brackets.append(_CLOSING[character])
            if len(brackets) > MAX_DEPTH:
                raise Malformed
            parts.append("{" if reader.take_to(reader.position + 1) == "{" else "[")
        elif brackets and character == brackets[-1]:
            reader.take_to(reader.position + 1)
            if parts[-1] == ", ":
                parts.pop()
            parts.append("}" if brackets.pop() == "}" else "]")
        elif brackets and character in ",:":
            parts.append(f"{reader.take_to(reader.position + 1)} ")
        else:
            parts.append(_word((yield from reader.match(_WORD, MAX_WORD_CHARACTERS))))
    text = "".join(parts)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
    return text


def _word(word: str) -> str:
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        try:
            number = ast.literal_eval(word)
        except (ValueError, SyntaxError):
            raise Malformed from None
        if isinstance(number, int) or (isinstance(number, float) and math.isfinite(number)):
            return json.dumps(number)
    raise Malformed


def _string(reader: Reader) -> Steps[str]:
    quote = yield from reader.expect("'", '"')
    more = yield from reader.accept(quote * 2, quote)
    if more == quote:
        return ""
    quote += more or ""
    parts: list[str] = []
    while (yield from reader.accept(quote)) is None:
        character = yield from reader.peek()
        if character == "\\":
            while len(reader.buffer) - reader.position < 2:
                yield from reader.more()
            parts.append(reader.take_to(reader.position + 2))
        elif character == "\n" and len(quote) == 1:
            raise Malformed
        else:
            match = _PLAIN[quote].match(reader.buffer, reader.position)
            parts.append(reader.take_to(match.end() if match else reader.position + 1))
    return _unescaped("".join(parts))


def _unescaped(text: str) -> str:
    try:
        value = _ESCAPE.sub(_escaped_character, text)
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except ValueError:
        raise Malformed from None


def _escaped_character(match: re.Match[str]) -> str:
    byte, short, long, octal, simple = match.groups()
    if octal:
        return chr(int(octal, 8))
    if digits := byte or short or long:
        return chr(int(digits, 16))
    return _SIMPLE_ESCAPES.get(simple, match[0])
