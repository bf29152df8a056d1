"""OutputConstraint: a grammar for an output, and a bound on its reasoning."""

from enum import StrEnum

import msgspec


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"  # {"type": "object"}: any JSON object
    REGEX = "regex"  # the whole output matches
    LARK = "lark"  # llguidance's dialect, with the rule `start`
    EBNF = "ebnf"  # GBNF, as in llama.cpp and XGrammar, with the rule `root`
    UNKNOWN = "unknown"  # of a later version: the engine refuses it

    @classmethod
    def _missing_(cls, value: object) -> "GrammarKind":
        return cls.UNKNOWN


class Grammar(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    kind: GrammarKind
    text: str
    any_whitespace: bool = True  # in JSON; False: as Python's json.dumps
    whitespace_pattern: str = ""  # a regular expression, for JSON; "": the default


class OutputConstraint(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    grammar: Grammar | None = None  # after the reasoning
    reasoning_end: tuple[int, ...] = ()  # tokens that end it; empty: no reasoning
    thinking_budget: int | None = None  # tokens until the engine forces `reasoning_end`; None: no bound
    reasoning_start: int | None = None  # only this first token begins a reasoning; None: it always begins
