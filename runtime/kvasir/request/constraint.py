"""OutputConstraint: a grammar for the output of a request, and a bound on its reasoning."""

from enum import StrEnum

import msgspec


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    """JSON text; for any JSON object: {"type": "object"}."""
    REGEX = "regex"
    """A regular expression that the whole output matches."""
    LARK = "lark"
    """llguidance's dialect of Lark; the rule `start` is the whole output."""
    EBNF = "ebnf"
    """GBNF, the dialect of llama.cpp and XGrammar; the rule `root` is the whole output."""
    UNKNOWN = "unknown"  # a kind of a later version: the engine refuses the request

    @classmethod
    def _missing_(cls, value: object) -> "GrammarKind":
        return cls.UNKNOWN


class Grammar(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    kind: GrammarKind
    text: str
    any_whitespace: bool = True
    """Of JSON: whether whitespace may stand between tokens; otherwise as Python's json.dumps writes it."""
    whitespace_pattern: str = ""
    """Of JSON: a regular expression for the whitespace between tokens. "": the default."""


class OutputConstraint(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    grammar: Grammar | None = None
    """For the whole output, or the part after the reasoning. None: any text."""
    reasoning_end: tuple[int, ...] = ()
    """Tokens that end the reasoning with which the output begins. Empty: there is none."""
    thinking_budget: int | None = None
    """Most tokens of the reasoning; then the engine forces `reasoning_end`. None: no bound."""
    reasoning_start: int | None = None
    """The output has a reasoning only if this is its first token. None: it begins inside one."""
