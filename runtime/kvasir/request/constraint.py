"""OutputConstraint: a grammar for the output of a request, and a bound on its reasoning."""

from enum import StrEnum

import msgspec


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"  # any JSON object: {"type": "object"}
    REGEX = "regex"  # the whole output matches
    LARK = "lark"  # llguidance's dialect; the rule `start` is the whole output
    EBNF = "ebnf"  # GBNF, the dialect of llama.cpp and XGrammar; the rule `root` is the whole output
    UNKNOWN = "unknown"  # a kind of a later version: the engine refuses the request

    @classmethod
    def _missing_(cls, value: object) -> "GrammarKind":
        return cls.UNKNOWN


class Grammar(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    kind: GrammarKind
    text: str
    any_whitespace: bool = True  # between the tokens of JSON; otherwise as Python's json.dumps writes it
    whitespace_pattern: str = ""  # a regular expression for the whitespace between tokens of JSON; "": the default


class OutputConstraint(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    grammar: Grammar | None = None  # for the output, or its part after the reasoning; None: any text
    reasoning_end: tuple[int, ...] = ()  # the tokens that end the reasoning; empty: there is none
    thinking_budget: int | None = None  # tokens after which the engine forces `reasoning_end`; None: no bound
    reasoning_start: int | None = None  # only this first token begins a reasoning; None: the output begins in one
