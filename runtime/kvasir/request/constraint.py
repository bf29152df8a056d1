"""What the output of a request must look like: a grammar, and a bound on its reasoning. Without torch.

The frontend makes constraints of fields such as `response_format` and `tools`, and the engine enforces them.
"""

from enum import StrEnum

import msgspec


class GrammarKind(StrEnum):
    """The language of `Grammar.text`."""

    JSON_SCHEMA = "json_schema"
    """A JSON Schema, as JSON text. Any JSON object: {"type": "object"}."""
    REGEX = "regex"
    """A regular expression that the whole output matches."""
    LARK = "lark"
    """llguidance's dialect of Lark, with `%json` and special tokens; the rule `start` is the whole output."""
    EBNF = "ebnf"
    """GBNF, the dialect of llama.cpp and XGrammar; the rule `root` is the whole output."""
    UNKNOWN = "unknown"
    """A kind that a later version has added: the engine refuses the request."""

    @classmethod
    def _missing_(cls, value: object) -> "GrammarKind":
        return cls.UNKNOWN


class Grammar(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The texts that an output may be. Two equal grammars are compiled once."""

    kind: GrammarKind
    text: str
    any_whitespace: bool = True
    """JSON_SCHEMA, and schemas in LARK: whether whitespace may stand between the tokens of JSON; otherwise a space
    follows each `,` and `:` as in Python's json.dumps."""
    whitespace_pattern: str = ""
    """The same: a regular expression for the whitespace between the tokens of the JSON. "": the default."""


class OutputConstraint(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Enforced by the engine for every token of the output, also after a preemption or a move to another engine."""

    grammar: Grammar | None = None
    """For the whole output, or for the part after the reasoning. None: any text."""
    reasoning_end: tuple[int, ...] = ()
    """The tokens that end the reasoning with which the output begins. Empty: it begins without reasoning, and the
    grammar holds from the first token."""
    thinking_budget: int | None = None
    """Most tokens of the reasoning: then the engine forces `reasoning_end`. None: no bound."""
    reasoning_start: int | None = None
    """The output has a reasoning only if this is its first token; otherwise the grammar holds from the first token.
    None: the output begins inside the reasoning, if `reasoning_end` is not empty."""
