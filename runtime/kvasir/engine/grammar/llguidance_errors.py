"""Turns an error of llguidance into a refusal that names the keyword and the next step."""

import re
from typing import Final

from kvasir.grammar_bounds import BadGrammar
from kvasir.grammar_bounds.special_names import public_text

_MAX_CHARACTERS: Final = 300
_STATE: Final = re.compile(r"\s*<(?:state|non-verbose/?)>.*", re.DOTALL)
# a schema's error inside of Lark, followed by lines of the grammar
_IN_LARK: Final = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: ([^\n]*).*", re.DOTALL)

_KNOWN: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "oneOf constraints are not supported",
        "oneOf",
        "has branches that may match the same value: use 'anyOf', or give each branch a required property with a "
        "constant of its own",
    ),
    (
        "patternProperty regexes",
        "patternProperties",
        "has patterns that may match the same name: make them disjoint",
    ),
    (
        "min/maxProperties only supported",
        "minProperties",
        "and 'maxProperties' need all names in 'properties' to be required: remove them, or require the names",
    ),
    ("Failed to generate regex for", "minimum", "or 'maximum' is too large a number: remove it"),
    (
        "Unable to determine if regex is empty",
        "pattern",
        "is too complex together with the length: remove one of them",
    ),
    (
        "circular references with sibling",
        "$ref",
        "is recursive and has keywords next to it: move them into the target",
    ),
    ("schema too large", "allOf", "joins too many branches: merge some"),
)  # beginning of the error, keyword, rest of the refusal


def refusal_of(message: str) -> BadGrammar:
    cause = shortened(_IN_LARK.sub(r"\1", message))
    for beginning, keyword, problem in _KNOWN:
        if cause.startswith(beginning):
            return BadGrammar(f"JSON Schema keyword {keyword!r} {problem} ({cause})", keyword)
    if cause.startswith("Unsatisfiable schema"):
        return BadGrammar(f"no output can match the JSON schema: {cause}")
    if cause.startswith("NoExtension"):
        return BadGrammar("the grammar matches no text at all: correct it")
    return BadGrammar(f"the grammar cannot be compiled: {cause}")


def shortened(message: str) -> str:
    return public_text(" ".join(_STATE.sub("", message).split()))[:_MAX_CHARACTERS]
