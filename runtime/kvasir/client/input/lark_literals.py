"""Literals in llguidance's dialect of Lark."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

_LINE_BREAKS: Final[Mapping[str, str]] = MappingProxyType({"\n": "n", "\r": "r"})


def literal(text: str) -> str:
    """Return a string literal with JSON's escapes. The text has no lone surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # llguidance rejects a raw DEL


def regex(pattern: str) -> str:
    written, escaped = [], False
    for character in pattern:
        if (letter := _LINE_BREAKS.get(character)) is not None:
            written.append(letter if escaped else f"\\{letter}")
        elif character == "/" and not escaped:
            written.append("\\/")
        else:
            written.append(character)
        escaped = character == "\\" and not escaped
    return f"/{''.join(written)}/"


def alternatives(parts: Iterable[str]) -> str:
    return f"({' | '.join(parts)})"


def choice_lark(choices: Sequence[str]) -> str:
    """Return a grammar of exactly these texts."""
    # One terminal: a rule with over 2,000 alternatives exceeds a limit of llguidance.
    return f"start: CHOICE\nCHOICE: {'|'.join(map(literal, dict.fromkeys(choices)))}\n"
