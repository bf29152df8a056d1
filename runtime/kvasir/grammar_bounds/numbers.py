"""Adapts the numbers of a schema to validators that read JSON into floating-point numbers."""

import math
from typing import Any, Final

from kvasir.grammar_bounds.bad_grammar import bad_keyword
from kvasir.grammar_bounds.limits import MAX_EXACT_INTEGER

# Smaller numbers have more zeros than a grammar should count.
_MIN_ABOVE_ZERO: Final = 1e-15
_DIGITS: Final = 15  # decimal digits that a 64-bit float keeps
_FRACTIONS: Final = 1024
Schema = dict[str, Any]


def adapt_numbers(schema: Schema, path: str) -> None:
    """Move bounds inwards, in place, so that no accepted number is rounded across one.

    0.99999999999999999 is below 1, but is read as 1.0. Raises BadGrammar for a `multipleOf` that is not exact.
    """
    for keyword, towards in (("minimum", math.inf), ("maximum", -math.inf)):
        value = schema.get(keyword)
        if isinstance(value, int) and int(float(value)) != value:
            schema[keyword] = _whole_inside(value, towards)
        elif isinstance(value, float) and float(f"{value:.{_DIGITS}g}") != value:
            schema[keyword] = _inside(value, towards)
    if schema.get("type") != "integer":
        _adapt_exclusive(schema, "exclusiveMinimum", "minimum", math.inf)
        _adapt_exclusive(schema, "exclusiveMaximum", "maximum", -math.inf)
    multiple = schema.get("multipleOf")
    if multiple is not None and not _is_exact(multiple):
        raise bad_keyword(
            path,
            "multipleOf",
            f"is {multiple!r}, which has no exact floating-point number: use a positive multiple of "
            f"1/{_FRACTIONS}, such as an integer or 0.5",
        )


def check_constant(value: Any, path: str, keyword: str) -> None:
    """Raise BadGrammar if a part of a constant cannot be written exactly."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, str):
            if any(_is_unwritten(character) for character in part):
                raise bad_keyword(
                    path,
                    keyword,
                    "holds a control character that cannot be written (\\b, \\f, \\n, \\r and \\t can): remove it",
                )
        elif isinstance(part, int | float) and not isinstance(part, bool) and abs(part) > MAX_EXACT_INTEGER:
            raise bad_keyword(
                path, keyword, f"holds {part}, and numbers are exact up to 2^53 only: use a smaller one or a string"
            )


def _is_unwritten(character: str) -> bool:
    return character == "\x7f" or (character < " " and character not in "\b\t\n\f\r")


def _is_exact(multiple: float) -> bool:
    return 0 < multiple <= MAX_EXACT_INTEGER and math.floor(multiple * _FRACTIONS) == multiple * _FRACTIONS


def _whole_inside(value: int, towards: float) -> int:
    """Return the nearest integer inside of a bound that is exact as a float."""
    nearest = float(value)
    inside = nearest >= value if towards > 0 else nearest <= value
    return int(nearest if inside else math.nextafter(nearest, towards))


def _inside(bound: float, towards: float) -> float:
    """Return a number of at most _DIGITS digits just inside of a bound."""
    if bound == 0:
        return math.copysign(_MIN_ABOVE_ZERO, towards)
    step = 10.0 ** (math.floor(math.log10(abs(bound))) + 1 - _DIGITS)
    moved = bound + math.copysign(step, towards)
    rounded = float(f"{moved:.{_DIGITS}g}")
    return (
        rounded if (rounded > bound) == (towards > 0) and rounded != bound else moved + math.copysign(step, towards)
    )


def _adapt_exclusive(schema: Schema, exclusive: str, inclusive: str, towards: float) -> None:
    bound = schema.get(exclusive)
    if bound is True and inclusive in schema:  # draft 4
        bound = schema[inclusive]
    if bound is None or isinstance(bound, bool):
        return
    nearest = _inside(float(bound), towards)
    other = schema.get(inclusive)
    if exclusive in schema and schema[exclusive] is not True and other is not None:
        nearest = max(nearest, other) if towards > 0 else min(nearest, other)
    schema[inclusive] = nearest
    del schema[exclusive]
