"""Reads one call in Python, f(a=1, b="x"), and writes its arguments as JSON."""

import json
import re
from typing import Final

from kvasir.frontend.parsers.streaming.call_bodies import CallOutput, call_name, skip_comments
from kvasir.frontend.parsers.streaming.json_words import MAX_WORD_CHARACTERS, json_word
from kvasir.frontend.parsers.streaming.reader import Malformed, Reader, Steps

MAX_DEPTH: Final = 100
_WORD: Final = re.compile(r"[\w.+-]+")
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))", re.DOTALL
)
_SIMPLE_ESCAPES: Final = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": "",
    "\\": "\\", "'": "'", '"': '"', "/": "/",
}  # fmt: skip
_PLAIN: Final = {quote: re.compile(rf"[^{quote}\\]+") for quote in "'\""}


class PythonCall:
    def __init__(self, out: CallOutput) -> None:
        self._out = out

    def read(self) -> Steps[None]:
        reader, out = self._out.reader, self._out
        name = yield from call_name(reader)
        yield from skip_comments(reader)
        yield from reader.expect("(")
        yield from skip_comments(reader)
        beginning = "{"
        while (yield from reader.accept(")")) is None:
            key = yield from call_name(reader)
            yield from skip_comments(reader)
            yield from reader.expect("=")
            value = yield from python_literal(reader)
            if beginning == "{":
                out.begin(name)
            out.arguments(f"{beginning}{json.dumps(key, ensure_ascii=False)}: {value}")
            beginning = ", "
            if (yield from reader.expect(",", ")")) == ")":
                break
            yield from skip_comments(reader)
        if beginning == "{":
            out.whole_call(name, "{}")
        else:
            out.arguments("}")
            out.end()


def python_literal(reader: Reader) -> Steps[str]:
    """Read a literal up to the `,` or `)` behind it. Return it as JSON."""
    parts: list[str] = []
    brackets: list[str] = []
    while True:
        yield from skip_comments(reader)
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
            word = json_word((yield from reader.match(_WORD, MAX_WORD_CHARACTERS)))
            if word is None:
                raise Malformed
            parts.append(word)
    text = "".join(parts)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
    return text


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
        else:  # also line breaks, which Python forbids here and models write
            match = _PLAIN[quote[0]].match(reader.buffer, reader.position)
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
