"""Reads one JSON value as models write it, piece by piece, and returns valid JSON.

Valid JSON is unchanged. Usual mistakes are repaired, also brackets that are missing before a mark; others fail.
"""

import json
import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from kvasir.frontend.parsers.streaming.json_words import MAX_WORD_CHARACTERS, json_word

MAX_DEPTH: Final = 128  # jiter, which many clients use, reads 200 levels
MAX_SPACE_CHARACTERS: Final = 64  # searched after a quote for the next character

# of a comment after a quote; after a longer one, or one with quotes, the quote is a part of the string
MAX_COMMENT_CHARACTERS: Final = 200

COMMENT_ENDS: Final = {"//": "\n", "#": "\n", "/*": "*/"}
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_COMMENT: Final = re.compile(
    rf"(?:(?://|#)[^\n\"']{{0,{MAX_COMMENT_CHARACTERS}}}\n|/\*[^*\"']{{0,{MAX_COMMENT_CHARACTERS}}}\*/)"
    rf"[ \t\r\n]{{0,{MAX_SPACE_CHARACTERS}}}"
)
_COMMENT_BEGINNING: Final = re.compile(r"/|(?://|#)[^\n\"']*|/\*[^*\"']*\*?")
_PLAIN: Final = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"[^'\"\\\x00-\x1f]+")}
_WORD: Final = re.compile(r"[\w.+-]+")
_KEY: Final = re.compile(r"[^\W\d][\w.-]*")
_HEX: Final = re.compile(r"[0-9a-fA-F]*")
_LOW_SURROGATE: Final = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_REPLACEMENT: Final = "\\ufffd"


class Scan(Enum):
    OPEN = auto()  # continues in the next piece
    DONE = auto()
    FAILED = auto()  # cannot be repaired


class _State(Enum):
    VALUE = auto()
    ITEM = auto()  # an array's value or end
    KEY = auto()  # a key, or the object's end
    COLON = auto()
    AFTER_VALUE = auto()
    STRING = auto()
    FAILED = auto()


class JsonMender:
    """Reads the value that begins with the first character."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """`stops`: marks that end the value even if brackets are missing."""
        self._stops = tuple(stop for stop in stops if stop)
        self._state = _State.VALUE
        self._closers: list[str] = []
        self._quote = '"'
        self._is_key = False
        self._comment_end = ""
        self._gap = ""  # a comma and whitespace, written only before another value
        self._out: list[str] = []

    def scan(self, text: str, position: int, is_end: bool = False) -> tuple[int, str, Scan]:
        """Read from an index on. Return the index of the first unread character, JSON for the text before it, and
        the state. `is_end`: no text follows.
        """
        self._out = []
        state = Scan.OPEN
        while position < len(text):
            if self._comment_end:
                step = self._in_comment
            else:
                step = self._in_string if self._state is _State.STRING else self._structure
            end = step(text, position, is_end)
            if self._state is _State.FAILED:
                state = Scan.FAILED
                break
            if end is None:
                break
            position = end
            if self._state is _State.AFTER_VALUE and not self._closers:
                state = Scan.DONE
                break
        return position, "".join(self._out), state

    def completion(self) -> str:
        """Return text that completes the output so far to valid JSON."""
        ending = '"' if self._state is _State.STRING else ""
        if self._state is _State.COLON or (self._state is _State.STRING and self._is_key):
            ending += ": null"
        elif self._state is _State.VALUE:
            ending = "null"
        return ending + "".join(reversed(self._closers))

    # Each step returns the index after the text that it read, or None if it needs more.

    def _structure(self, text: str, position: int, is_end: bool) -> int | None:
        space = _SPACE.match(text, position)
        assert space is not None  # matches any text
        if space.end() > position:
            if self._gap:
                self._gap += space[0]
            else:
                self._out.append(space[0])
            return space.end()
        state, character = self._state, text[position]
        if state in (_State.AFTER_VALUE, _State.KEY, _State.ITEM):
            if (stop := self._stop_at(text, position, is_end)) is not False:
                return None if stop is None else self._close_all(position)
            while character == "}" and self._closers[-1] == "]" and "}" in self._closers:
                self._out.append(self._gap[1:] + self._closers.pop())
                self._gap = ""
            if character == self._closers[-1]:
                self._out.append(self._gap[1:] + self._closers.pop())
                self._gap, self._state = "", _State.AFTER_VALUE
                return position + 1
        if character in "/#":
            return self._comment(text, position, is_end)
        if character == "," and (state is _State.AFTER_VALUE or self._gap):
            self._gap = self._gap or ","
            self._state = self._next_member()
        elif character in "\"'" and state is _State.AFTER_VALUE:
            self._gap, self._state = ",", self._next_member()
            return position
        elif character == ":" and state is _State.COLON:
            self._out.append(":")
            self._state = _State.VALUE
        elif state is _State.KEY:
            return self._key(text, position, is_end)
        elif state in (_State.VALUE, _State.ITEM):
            return self._value(text, position, is_end)
        else:
            self._state = _State.FAILED
        return position + 1

    def _comment(self, text: str, position: int, is_end: bool) -> int | None:
        mark = "#" if text[position] == "#" else text[position : position + 2]
        if mark in COMMENT_ENDS:
            self._comment_end = COMMENT_ENDS[mark]
        elif mark == "/" and not is_end:
            return None
        else:
            self._state = _State.FAILED
        return position + len(mark)

    def _in_comment(self, text: str, position: int, is_end: bool) -> int | None:
        end = text.find(self._comment_end, position)
        if any(text.find(stop, position, end if end >= 0 else len(text)) >= 0 for stop in self._stops):
            self._state = _State.FAILED  # the call ends before the comment
            return None
        if end >= 0:
            end += len(self._comment_end)
            self._comment_end = ""
            return end
        end = len(text) - max(map(len, (self._comment_end, *self._stops))) + 1
        return end if end > position else None

    def _next_member(self) -> _State:
        return _State.KEY if self._closers[-1] == "}" else _State.ITEM

    def _key(self, text: str, position: int, is_end: bool) -> int | None:
        if text[position] in "\"'":
            return self._begin_string(text, position, is_key=True)
        word = _KEY.match(text, position)
        if word is None or word.end() - position > MAX_WORD_CHARACTERS:
            self._state = _State.FAILED
        elif word.end() == len(text) and not is_end:
            return None
        else:
            self._write(json.dumps(word[0], ensure_ascii=False))
            self._state = _State.COLON
            return word.end()
        return position

    def _value(self, text: str, position: int, is_end: bool) -> int | None:
        character = text[position]
        if character in "\"'":
            return self._begin_string(text, position, is_key=False)
        if character in "{[" and len(self._closers) < MAX_DEPTH:
            self._write(character)
            self._closers.append("}" if character == "{" else "]")
            self._state = self._next_member()
            return position + 1
        word = _WORD.match(text, position)
        if word is not None and word.end() == len(text) and not is_end and len(word[0]) <= MAX_WORD_CHARACTERS:
            return None
        value = json_word(word[0]) if word is not None else None
        if word is None or value is None:
            self._state = _State.FAILED
            return position
        self._write(value)
        self._state = _State.AFTER_VALUE
        return word.end()

    def _write(self, text: str) -> None:
        self._out += (self._gap, text)
        self._gap = ""

    def _close_all(self, position: int) -> int:
        self._out.append("".join(reversed(self._closers)))
        self._closers.clear()
        self._gap, self._state = "", _State.AFTER_VALUE
        return position

    def _stop_at(self, text: str, position: int, is_end: bool) -> bool | None:
        """Return whether a stop comes next; None if unknown."""
        if text.startswith(self._stops, position):
            return True
        rest = text[position : position + MAX_SPACE_CHARACTERS]
        return None if not is_end and any(stop.startswith(rest) for stop in self._stops) else False

    def _begin_string(self, text: str, position: int, *, is_key: bool) -> int:
        self._write('"')
        self._state, self._quote, self._is_key = _State.STRING, text[position], is_key
        return position + 1

    def _in_string(self, text: str, position: int, is_end: bool) -> int | None:
        if plain := _PLAIN[self._quote].match(text, position):
            self._out.append(plain[0])
            return plain.end()
        character = text[position]
        if character == "\\":
            return self._escape(text, position, is_end)
        if character == self._quote:
            ends = self._ends_string(text, position + 1, is_end)
            if ends is None:
                return None
            if ends:
                self._out.append('"')
                self._state = _State.COLON if self._is_key else _State.AFTER_VALUE
                return position + 1
        if character == "\n" and (stop := self._stop_at(text, position + 1, is_end)) is not False:
            self._state = self._state if stop is None else _State.FAILED  # the final quote is missing
            return None
        self._out.append(json.dumps(character)[1:-1])
        return position + 1

    def _ends_string(self, text: str, position: int, is_end: bool) -> bool | None:
        """Return whether the quote before this index ends the string, by the text after it; None if unknown."""
        space = _SPACE.match(text, position)
        assert space is not None  # matches any text
        follower = space.end()
        if follower - position > MAX_SPACE_CHARACTERS:
            return True
        if follower == len(text):
            return True if is_end else None
        if self._is_key:
            return text[follower] == ":"
        closer = self._closers[-1] if self._closers else ""
        if text[follower] in "/#":
            comment = _COMMENT.match(text, follower)
            rest = text[follower : follower + MAX_COMMENT_CHARACTERS + 4]
            if comment is None:
                is_open = len(rest) <= MAX_COMMENT_CHARACTERS + 3 and not is_end
                return None if is_open and _COMMENT_BEGINNING.fullmatch(rest) else False
            follower = comment.end()
            if follower == len(text):
                return True if is_end else None
        if text[follower] in {"}": ",}", "]": ",}]", "": ",}]:"}[closer]:
            return True
        if text[follower] in "\"'" and "\n" in space[0]:  # a comma is missing
            return True
        return self._stop_at(text, follower, is_end)

    def _escape(self, text: str, position: int, is_end: bool) -> int | None:
        kind = text[position + 1 : position + 2]
        if not kind:
            return None
        if kind in '"\\/bfnrt':
            self._out.append(text[position : position + 2])
            return position + 2
        if kind == "'":
            self._out.append("'")
            return position + 2
        digits = _HEX.match(text, position + 2, position + 6)
        count = len(digits[0]) if kind == "u" and digits else 0
        if kind == "u" and count < 4 and position + 2 + count == len(text) and not is_end:
            return None
        if count < 4:
            self._out.append("\\\\")
            return position + 1
        return self._unit(text, position, is_end)

    def _unit(self, text: str, position: int, is_end: bool) -> int | None:
        """Read a \\uXXXX escape, and the other half of a surrogate pair."""
        unit, end = text[position : position + 6], position + 6
        if unit[2] not in "dD" or unit[3] in "01234567":
            self._out.append(unit)
        elif unit[3] in "cdefCDEF":
            self._out.append(_REPLACEMENT)
        elif pair := _LOW_SURROGATE.match(text, end):
            self._out.append(unit + pair[0])
            return pair.end()
        elif len(text) - end < 6 and not is_end:
            return None
        else:
            self._out.append(_REPLACEMENT)
        return end
