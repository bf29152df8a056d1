"""Builds the text of a grammar in Lark."""

import json
import re
from collections.abc import Mapping, Set
from typing import Any

from kvasir.client.input.lark_literals import literal as quoted
from kvasir.grammar_bounds.json_options import COMPACT_JSON


class LarkText:
    def __init__(self, special_tokens: Mapping[str, int], text_tokens: Set[str] = frozenset()) -> None:
        """`special_tokens`: ids by text. `text_tokens`: other added tokens."""
        self._special = special_tokens
        self._text_tokens = text_tokens
        names = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None
        # names by hint, attributes and body, so that equal rules are written once
        self._rules: dict[tuple[str, str, str], str] = {}
        self._terminals: dict[str, str] = {}

    def rule(self, hint: str, body: str, attributes: str = "") -> str:
        return self._rules.setdefault((hint, attributes, body), f"{hint}_{len(self._rules)}")

    def terminal(self, name: str, body: str) -> None:
        self._terminals[name] = body

    def literal(self, text: str) -> str:
        """Return an expression for exactly this text; "" for no text."""
        parts = self._split.split(text) if self._split else [text]
        return " ".join(
            f"<[{self._special[part]}]>" if part in self._special else quoted(part) for part in parts if part
        )

    def is_special(self, text: str) -> bool:
        return text in self._special

    def is_token(self, text: str) -> bool:
        """Return whether the text is one added token, special or not."""
        return text in self._special or text in self._text_tokens

    def json(self, schema: Mapping[str, Any], options: Mapping[str, Any] = COMPACT_JSON) -> str:
        """Return an expression for JSON of a schema. `options`: llguidance's, for whitespace."""
        # like json.dumps, and so most chat templates
        return f"%json {json.dumps({**schema, 'x-guidance': dict(options)})}"

    def text(self, start: str) -> str:
        """`start`: an expression for the whole output."""
        rules = [f"{name}{attributes}: {body}" for (_, attributes, body), name in self._rules.items()]
        terminals = [f"{name}: {body}" for name, body in self._terminals.items()]
        return "\n".join([f"start: {start}", *rules, *terminals, ""])


def joined(*expressions: str) -> str:
    return " ".join(filter(None, expressions))


def either(expressions: list[str]) -> str:
    return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"


def pattern(text: str) -> str:
    """Return a regular expression for exactly this text, within / /."""
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$/-&~#" else "\\n" if c == "\n" else c for c in text)
