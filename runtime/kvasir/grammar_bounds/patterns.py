"""Translates a `pattern` of JSON Schema for llguidance.

ECMA 262, Python and Rust disagree on some escapes and classes. What llguidance (Rust) matches after the translation
is a match in the other two.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvasir.grammar_bounds.bad_grammar import BadGrammar

_TOKEN: Final = re.compile(
    r"""
    (?P<escape> \\ (?: x[0-9a-fA-F]{2} | u[0-9a-fA-F]{4} | c[A-Za-z] | [pP]\{[^{}]*\} | . ) )
    | (?P<open> \( (?: \? (?: [:=!] | <[=!] | P?<\w+> | [a-zA-Z-]*[:)] ) )? )
    | (?P<other> [^\\] )
    """,
    re.VERBOSE | re.DOTALL,
)
# The characters on which ECMA 262 and Python agree.
_NARROW: Final = {
    "d": "[0-9]",
    "D": r"[^\p{Nd}]",
    "w": "[a-zA-Z0-9_]",
    "W": r"[^\p{Alphabetic}\p{M}\p{N}\p{Pc}]",
    "s": r"[ \t\n\r\f\v]",
    "S": r"[^\s\x1c-\x1f\x{85}\x{FEFF}]",
}
# In a negated class: the characters of either.
_WIDE: Final = {
    "d": r"\p{Nd}",
    "D": "[^0-9]",
    "w": r"[\p{Alphabetic}\p{M}\p{N}\p{Pc}]",
    "W": "[^a-zA-Z0-9_]",
    "s": r"[\s\x1c-\x1f\x{85}\x{FEFF}]",
    "S": r"[^ \t\n\r\f\v]",
}
_DOT: Final = r"[^\n\r\x{2028}\x{2029}]"
# Control characters with a short escape in JSON. llguidance drops the others.
_WRITTEN: Final = "\b\t\n\f\r"
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    in_class: bool = False
    negated: bool = False  # inside of a negated class

    @property
    def control(self) -> str | None:
        """The control character of this token if it cannot be written, else None."""
        character = self.text if self.kind != "escape" else _character(self.text)
        unwritten = len(character) == 1 and (character < " " or character == "\x7f") and character not in _WRITTEN
        return character if unwritten else None


def translated_pattern(pattern: str) -> str:
    """Translate a pattern for llguidance. Raises BadGrammar."""
    tokens = list(_tokens(pattern))
    for place, token in enumerate(tokens):
        if token.control is not None and not token.negated:
            around = tokens[max(0, place - 1) : place + 2]
            if not token.in_class or not any(near.text == "-" for near in around):
                raise BadGrammar(
                    f"the control character {token.control!r} cannot be part of the output: remove it from the "
                    "regular expression"
                )
    return "".join(map(_translated, tokens))


def _tokens(pattern: str) -> Iterator[_Token]:
    in_class, negated, place = False, False, 0
    while place < len(pattern):
        match = _TOKEN.match(pattern, place)
        if match is None:
            raise BadGrammar("the regular expression ends with a backslash: complete the escape")
        kind, text = match.lastgroup or "other", match[0]
        if not in_class and text == "[":
            in_class, negated = True, pattern[place + 1 : place + 2] == "^"
            text = "[^" if negated else "["
            yield _Token("class", text)
        elif in_class and text == "]":
            in_class = negated = False
            yield _Token("class", text)
        elif in_class:
            if kind != "escape":
                kind, text = "other", text[0]
            yield _Token(kind, text, True, negated)
        else:
            yield _Token(kind, text)
        place += len(text)


def _character(escape: str) -> str:
    """Return the character of an escape, or the escape if it stands for a class."""
    letter = escape[1]
    if letter in "xu" and len(escape) > 2:
        return chr(int(escape[2:], 16))
    if letter == "c" and len(escape) > 2:
        return chr(ord(escape[2]) % 32)
    return _NAMED.get(letter, escape)


def _translated(token: _Token) -> str:
    text = token.text
    if token.kind == "escape":
        return _translated_escape(token)
    if token.kind == "open":
        if text.startswith(("(?=", "(?!", "(?<=", "(?<!")):
            raise BadGrammar("lookaround is not supported in regular expressions: write it without")
        if re.fullmatch(r"\(\?[a-zA-Z-]*[:)]", text) and text not in ("(?:", "(?i:", "(?i)"):
            raise BadGrammar(f"the flags {text} are not supported in regular expressions: remove them")
    if token.kind == "other" and text == "." and not token.in_class:
        return _DOT
    if token.in_class and text in "[&~":
        return "\\" + text  # Rust has nested classes, && and ~~ there
    return text


def _translated_escape(token: _Token) -> str:
    text, letter = token.text, token.text[1]
    if letter in "bB" and not token.in_class:
        raise BadGrammar(f"the word boundary {text} is not supported in regular expressions: write it without")
    if letter in "123456789" or letter == "k":
        raise BadGrammar(f"the back reference {text} is not supported in regular expressions: write it without")
    if letter in "AzZ" and not token.in_class:
        raise BadGrammar(f"{text} has different meanings in regular expressions: use ^ or $")
    if letter in "xu" and len(text) == 2:
        raise BadGrammar(f"{text} has different meanings in regular expressions: use \\xHH or \\uHHHH")
    if letter in _NARROW:
        return (_WIDE if token.negated else _NARROW)[letter]
    if (letter == "c" and len(text) > 2) or letter == "0":
        return f"\\x{ord(_character(text)):02x}"
    return text
