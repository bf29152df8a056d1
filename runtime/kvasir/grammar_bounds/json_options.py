"""llguidance's options for JSON: whitespace, separators and escapes."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kvasir.grammar_bounds.bad_grammar import BadGrammar
from kvasir.grammar_bounds.limits import MAX_WHITESPACE_CHARACTERS
from kvasir.request.constraint import Grammar

# Bounded, so that an untrained model does not write newlines for ever.
JSON_WHITESPACE: Final = r"( |\n {0,32}|\n\t{1,8})"
_FIXED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "coerce_one_of": False,
        "lenient": False,
        # Without \u, in which a property's name could be written so that its schema does not apply.
        "json_allowed_escapes": 'nrbtf\\"',
    }
)
COMPACT_JSON: Final[Mapping[str, Any]] = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
)
_WHITESPACE: Final = re.compile(r"(?:[ \n\t\r]|\\[ntrs]|\\x20|\\x0[9aAdD]|[|()?*+\[\]]|\{\d{0,3},?\d{0,3}\})*")
_ESCAPED_SPACE: Final = re.compile(r"\\s")
_SEPARATORS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"item_separator": (",", ", "), "key_separator": (":", ": ")}
)


def json_options(grammar: Grammar) -> dict[str, Any]:
    """Return the options of a grammar's schema. Raises BadGrammar for a bad whitespace pattern."""
    return {**_FIXED, **whitespace_options(grammar)}


def whitespace_options(grammar: Grammar) -> dict[str, Any]:
    """Return the options that may differ between schemas. Raises BadGrammar."""
    pattern = _checked(grammar.whitespace_pattern)
    if not grammar.any_whitespace:
        return dict(COMPACT_JSON)
    return {
        "whitespace_flexible": True,
        "whitespace_pattern": pattern or JSON_WHITESPACE,
        "item_separator": ",",
        "key_separator": ":",
    }


def own_json_options(options: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """Return the options with those of a schema's "x-guidance". Raises BadGrammar."""
    if not isinstance(given, dict):
        raise _refused("is not an object")
    merged = dict(options)
    if "whitespace_flexible" in given or "whitespace_pattern" in given:
        merged.pop("whitespace_pattern", None)
    for name, value in given.items():
        if name == "whitespace_pattern" and isinstance(value, str):
            merged[name] = _checked(value)
        elif name == "whitespace_flexible" and isinstance(value, bool):
            merged[name] = value
        elif name not in _SEPARATORS or value not in _SEPARATORS[name]:
            raise _refused(f"has {name!r}: {value!r}, which is not supported")
        else:
            merged[name] = value
    if merged.get("whitespace_flexible", True) and not merged.get("whitespace_pattern"):
        merged["whitespace_pattern"] = JSON_WHITESPACE
    return merged


def _checked(pattern: str) -> str:
    r"""Return a whitespace pattern in which \s means the whitespace of JSON. Raises BadGrammar."""
    if len(pattern) > MAX_WHITESPACE_CHARACTERS:
        raise BadGrammar(
            f"the whitespace pattern has {len(pattern)} characters, and at most {MAX_WHITESPACE_CHARACTERS} are "
            "allowed: shorten it"
        )
    if not _WHITESPACE.fullmatch(pattern):
        raise BadGrammar(
            f"the whitespace pattern {pattern!r} may match text that JSON does not allow between its tokens: use "
            r"only spaces, \n, \t, \r, \s, groups, classes, | and repetitions"
        )
    return _ESCAPED_SPACE.sub(r"[ \\n\\t\\r]", pattern)


def _refused(problem: str) -> BadGrammar:
    return BadGrammar(
        f"'x-guidance' of a schema {problem}: only whitespace_flexible, whitespace_pattern, item_separator and "
        "key_separator are",
        "x-guidance",
    )
