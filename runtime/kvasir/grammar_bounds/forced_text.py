"""Bounds the text that a grammar forces.

If only one text may follow, llguidance computes all of it for each mask, and a small grammar may force gigabytes:
`"a"{1000}`, an array of a constant with `minItems`. The bound adds up all parts of a grammar, also those that
exclude each other, so it may be much too high. Its use: docs/design/grammars.md.
"""

import json
import math
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from kvasir.grammar_bounds.json_options import JSON_WHITESPACE, json_options
from kvasir.request.constraint import Grammar, GrammarKind

# In bytes: a mask then takes about a millisecond.
LONGEST_FORCED_TEXT: Final = 4_096
_UNBOUNDED: Final = LONGEST_FORCED_TEXT + 1
_SPECIAL_BYTES: Final = 16  # at least as many as llguidance counts for a special token
# The parts of a grammar in Lark with a known size: not counted repetitions, intersections or directives. An open
# repetition counts once, as there is a choice after each time.
_PART: Final = re.compile(
    r"""
    (?P<text> "(?:[^"\\\n]|\\.)*" )
    | (?P<comment> //[^\n]* | \#[^\n]* )
    | / (?P<regex> (?:[^/\\\n]|\\.)+ ) /
    | (?P<special> <[^<>\s]*> )
    | (?P<json> %json\s+ )
    | ^ (?P<head> [A-Za-z_]\w* ) (?: \[lazy\] )? [ \t]* :
    | (?P<name> [A-Za-z_]\w* )
    | (?P<operators> [\s()|?*+]+ )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
# In regular expressions with counted repetitions, or that may match nothing at all.
_REPEATS_OR_EMPTY: Final = re.compile(r"\[\^|[{&~]|\\[pPDWSbB]|--")
_COUNT: Final = re.compile(r"\{\s*(\d+)")
_CHARACTER_BYTES: Final = 4
_LEAST: Final = ("minItems", "minLength", "minProperties")
_PATTERNS: Final = ('"pattern"', '"format"', '"patternProperties"')
# With these keywords, a text may have to match two patterns at once.
_COMBINED: Final = ('"allOf"', '"anyOf"', '"oneOf"', '"$ref"', '"patternProperties"')


def may_force(grammar: Grammar) -> bool:
    """Return whether all forced texts of a grammar are short. The grammar comes from `adapt_grammar`."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = json.loads(grammar.text)
            size = _of_schema(schema, json_options(grammar))
        case GrammarKind.REGEX:
            size = _of_regex(grammar.text)
        case GrammarKind.LARK:
            size = _of_lark(grammar.text)
        case _:
            size = _UNBOUNDED
    return size <= LONGEST_FORCED_TEXT


def _of_regex(pattern: str) -> int:
    return _UNBOUNDED if _REPEATS_OR_EMPTY.search(pattern) else len(pattern.encode())


def _of_schema(schema: Any, options: Mapping[str, Any]) -> int:
    # With free whitespace there is a choice after each token of JSON, so only the longest token counts.
    written = json.dumps(schema)
    if sum(map(written.count, _PATTERNS)) > 1 and any(name in written for name in _COMBINED):
        return _UNBOUNDED  # a text that matches two patterns may be much longer than both
    if options.get("whitespace_flexible"):
        return _longest_token(schema) if options.get("whitespace_pattern") == JSON_WHITESPACE else _UNBOUNDED
    return _UNBOUNDED if '"$ref"' in written else _sum_of(schema) * _repetitions(schema)


def _longest_token(value: Any) -> int:
    """Return the size of the longest name, text, number, pattern or least length in a JSON value."""
    if isinstance(value, list):
        return max(map(_longest_token, value), default=0)
    if isinstance(value, dict):
        sizes = [max(_longest_token(name), _longest_token(inner)) for name, inner in value.items()]
        return max(sizes, default=0) + (_least(value, "minLength") - 1) * _CHARACTER_BYTES
    return _scalar_size(value)


def _sum_of(value: Any) -> int:
    """Return the size of all parts of a JSON value together."""
    if isinstance(value, list):
        return 2 + sum(1 + _sum_of(inner) for inner in value)
    if isinstance(value, dict):
        return 2 + sum(2 + _sum_of(name) + _sum_of(inner) for name, inner in value.items())
    return _scalar_size(value)


def _repetitions(value: Any) -> int:
    """Return the product of all counts: merged schemas may apply each of them to any part."""
    if isinstance(value, list):
        return math.prod(map(_repetitions, value))
    if isinstance(value, dict):
        required = value.get("required")
        names = required if isinstance(required, list) else ()
        properties = value.get("properties")
        known = properties if isinstance(properties, dict) else {}
        counts = math.prod(_least(value, name) for name in _LEAST) * (1 + sum(name not in known for name in names))
        return min(_UNBOUNDED, counts * math.prod(map(_repetitions, value.values())))
    return 1


def _scalar_size(value: str | float | None) -> int:
    if isinstance(value, float):
        return len(f"{value:f}")
    counts = _COUNT.findall(value) if isinstance(value, str) else ()
    return len(json.dumps(value)) * math.prod(max(1, int(count)) for count in counts)


def _least(schema: Mapping[str, Any], name: str) -> int:
    least = schema.get(name)
    return max(1, math.ceil(least)) if isinstance(least, int | float) else 1


def _of_lark(text: str) -> int:
    sizes: dict[str, int] = {}
    used: dict[str, list[str]] = {}
    rule, place = "", 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None:
            return _UNBOUNDED
        place = part.end()
        if part["head"]:
            rule = part["head"]
            if rule in sizes:
                return _UNBOUNDED
            sizes[rule], used[rule] = 0, []
        elif part["comment"] or part["operators"]:
            continue
        elif rule not in sizes:
            return _UNBOUNDED
        elif part["name"]:
            used[rule].append(part["name"])
        elif part["json"]:
            schema, place = json.JSONDecoder().raw_decode(text, place)
            sizes[rule] += _of_schema(schema, schema.get("x-guidance", {}))
        elif part["regex"]:
            sizes[rule] += _of_regex(part["regex"])
        else:
            sizes[rule] += _SPECIAL_BYTES if part["special"] else len(part["text"].encode(errors="surrogatepass"))
    try:
        order = list(TopologicalSorter(used).static_order())
    except CycleError:
        return _UNBOUNDED
    for name in order:
        rules = [sizes.get(other, _UNBOUNDED) for other in used.get(name, ())]
        sizes[name] = min(_UNBOUNDED, sizes.get(name, _UNBOUNDED) + sum(rules))
    return sizes.get("start", _UNBOUNDED)
