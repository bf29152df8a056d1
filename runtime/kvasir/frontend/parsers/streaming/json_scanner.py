"""Finds the end of a JSON value in text that arrives in pieces, and the first character that is not JSON."""

import re
from enum import Enum, auto
from typing import Final

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_CHARACTERS: Final = re.compile(r"[-+.0-9eE]*")
_LITERALS: Final = {"t": "true", "f": "false", "n": "null"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class Scan(Enum):
    """How far a scan has come."""

    OPEN = auto()
    """The value goes on in the next piece."""
    DONE = auto()
    FAILED = auto()
    """The next character is not JSON."""


class _State(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    AFTER_VALUE = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    LITERAL = auto()
    FAILED = auto()


class JsonScanner:
    """Scans one value, which begins with the first character that it is given."""

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._open: list[str] = []
        self._is_key = False
        self._rest = ""
        """Of a literal such as `true`."""
        self._hex_digits = 0
        self._number: list[str] = []

    def scan(self, text: str, position: int) -> tuple[int, Scan]:
        """Scan from an index on. Return the index behind the last character of the value, and how far it is."""
        while position < len(text):
            if self._state in (_State.STRING, _State.ESCAPE, _State.HEX):
                end = self._string(text, position)
            elif self._state is _State.NUMBER:
                end = self._in_number(text, position)
            elif self._state is _State.LITERAL:
                end = self._literal(text, position)
            else:
                end = self._structure(text, position)
            if end is None:
                self._state = _State.FAILED
            else:
                position = end
            if self._state is _State.FAILED:
                return position, Scan.FAILED
            if self._state is _State.AFTER_VALUE and not self._open:
                return position, Scan.DONE
        return position, Scan.OPEN

    def _structure(self, text: str, position: int) -> int | None:
        if self._open:
            match = _SPACE.match(text, position)
            assert match is not None  # matches any text
            if match.end() > position:
                return match.end()
        character, state = text[position], self._state
        if (character == "}" and self._open[-1:] == ["{"] and state in (_State.KEY_OR_END, _State.AFTER_VALUE)) or (
            character == "]" and self._open[-1:] == ["["] and state in (_State.VALUE_OR_END, _State.AFTER_VALUE)
        ):
            self._close()
        elif character == "," and state is _State.AFTER_VALUE:
            self._state = _State.KEY if self._open[-1] == "{" else _State.VALUE
        elif character == ":" and state is _State.COLON:
            self._state = _State.VALUE
        elif character == '"' and state in (_State.KEY, _State.KEY_OR_END):
            self._state, self._is_key = _State.STRING, True
        elif state in (_State.VALUE, _State.VALUE_OR_END):
            return self._begin_value(text, position)
        else:
            return None
        return position + 1

    def _begin_value(self, text: str, position: int) -> int | None:
        character = text[position]
        if character == "{":
            self._open.append(character)
            self._state = _State.KEY_OR_END
        elif character == "[":
            self._open.append(character)
            self._state = _State.VALUE_OR_END
        elif character == '"':
            self._state, self._is_key = _State.STRING, False
        elif character in _LITERALS:
            self._state, self._rest = _State.LITERAL, _LITERALS[character][1:]
        elif character in "-0123456789":
            self._state, self._number = _State.NUMBER, []
            return position
        else:
            return None
        return position + 1

    def _close(self) -> None:
        self._open.pop()
        self._state = _State.AFTER_VALUE

    def _string(self, text: str, position: int) -> int | None:
        if self._state is _State.ESCAPE:
            if text[position] == "u":
                self._state, self._hex_digits = _State.HEX, 4
            elif text[position] in '"\\/bfnrt':
                self._state = _State.STRING
            else:
                return None
            return position + 1
        if self._state is _State.HEX:
            if text[position] not in _HEX:
                return None
            self._hex_digits -= 1
            if not self._hex_digits:
                self._state = _State.STRING
            return position + 1
        match = _PLAIN.match(text, position)
        assert match is not None  # matches any text
        if match.end() > position:
            return match.end()
        if text[position] == '"':
            self._state = _State.COLON if self._is_key else _State.AFTER_VALUE
        elif text[position] == "\\":
            self._state = _State.ESCAPE
        else:
            return None
        return position + 1

    def _in_number(self, text: str, position: int) -> int:
        match = _NUMBER_CHARACTERS.match(text, position)
        assert match is not None  # matches any text
        self._number.append(match[0])
        if match.end() < len(text):
            is_number = _NUMBER.fullmatch("".join(self._number))
            self._state = _State.AFTER_VALUE if is_number else _State.FAILED
        return match.end()

    def _literal(self, text: str, position: int) -> int | None:
        if text[position] != self._rest[0]:
            return None
        self._rest = self._rest[1:]
        if not self._rest:
            self._state = _State.AFTER_VALUE
        return position + 1
