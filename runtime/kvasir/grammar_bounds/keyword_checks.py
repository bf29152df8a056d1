"""The values of the keywords of one schema: their types and their limits."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kvasir.grammar_bounds.bad_grammar import BadGrammar, bad_keyword
from kvasir.grammar_bounds.formats import FORMAT_PATTERNS
from kvasir.grammar_bounds.keywords import FORMATS, KEYWORDS, SupportStatus
from kvasir.grammar_bounds.numbers import adapt_numbers, check_constant
from kvasir.grammar_bounds.patterns import translated_pattern

Schema = dict[str, Any]
TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_COUNTS: Final = ("minItems", "minLength", "minProperties", "maxItems", "maxLength", "maxProperties")
_MAX_COUNT: Final = 2**31 - 1  # of llguidance
_NUMBERS: Final = ("minimum", "maximum", "multipleOf")


def check_keywords(schema: Schema, path: str) -> None:
    """Adapt the keywords of a schema in place. Raises BadGrammar for malformed, too large and unsupported ones."""
    for keyword, value in list(schema.items()):
        support = KEYWORDS.get(keyword)
        if support is None:
            continue
        if keyword in _COUNTS and isinstance(value, float) and value.is_integer():
            schema[keyword] = value = int(value)  # 2.0 is an integer in JSON Schema
        if keyword in _EXPECTED and not _EXPECTED[keyword][0](value):
            raise bad_keyword(path, keyword, f"is {_shown(value)}, and must be {_EXPECTED[keyword][1]}")
        if keyword == "uniqueItems" and value is False:
            del schema[keyword]
        elif support.status is SupportStatus.REFUSED or keyword == "uniqueItems":
            raise bad_keyword(path, keyword, "is not supported: remove it, and check the output yourself")
        elif keyword in _CHECKS:
            _CHECKS[keyword](schema, keyword, path)
    adapt_numbers(schema, path)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_type(value: Any) -> bool:
    return value in TYPES if isinstance(value, str) else _is_types(value)


def _is_types(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(part, str) and part in TYPES for part in value)
    )


_Expected = tuple[Callable[[Any], bool], str]
_TEXT: Final[_Expected] = (_is_text, "a string")
_COUNT: Final[_Expected] = (_is_count, "a non-negative integer")
_NUMBER: Final[_Expected] = (_is_number, "a number")
_SCHEMAS: Final[_Expected] = (_is_schemas, "a list of one or more schemas")
_NAMED: Final[_Expected] = (_is_named_schemas, "an object whose values are schemas")

_EXPECTED: Final[Mapping[str, _Expected]] = MappingProxyType(
    {
        **dict.fromkeys(("$ref", "$id", "$anchor", "$schema", "pattern", "format"), _TEXT),
        **dict.fromkeys(_COUNTS, _COUNT),
        **dict.fromkeys(_NUMBERS, _NUMBER),
        **dict.fromkeys(
            ("exclusiveMinimum", "exclusiveMaximum"),
            (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
        ),
        **dict.fromkeys(_LISTS, _SCHEMAS),
        **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), _NAMED),
        **dict.fromkeys(("additionalProperties", "additionalItems"), (_is_schema, "a schema")),
        "items": (lambda value: _is_schema(value) or _is_schemas(value), "a schema"),
        "type": (_is_type, f"one or more of {', '.join(TYPES)}"),
        "enum": (lambda value: isinstance(value, list) and bool(value), "a list of one or more values"),
        "required": (
            lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
            "a list of strings",
        ),
        "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    }
)


def _check_least_properties(schema: Schema, keyword: str, path: str) -> None:
    required = len(set(schema.get("required", ())))
    if schema[keyword] > required + 1:
        raise bad_keyword(
            path,
            keyword,
            f"is {schema[keyword]} with {required} required properties, and at most one more is supported, as the "
            "names of other properties may repeat: list more names in 'required', or lower it",
        )


def _drop_large(schema: Schema, keyword: str, path: str) -> None:
    if schema[keyword] > _MAX_COUNT:  # no output reaches it
        del schema[keyword]


def _check_const(schema: Schema, keyword: str, path: str) -> None:
    check_constant(schema[keyword], path, keyword)


def _check_pattern(schema: Schema, keyword: str, path: str) -> None:
    schema[keyword] = _translated(schema[keyword], keyword, path)


def _check_pattern_properties(schema: Schema, keyword: str, path: str) -> None:
    schema[keyword] = {_translated(each, keyword, path): value for each, value in schema[keyword].items()}


def _translated(pattern: str, keyword: str, path: str) -> str:
    try:
        return translated_pattern(pattern)
    except BadGrammar as error:
        raise bad_keyword(path, keyword, f"is {_shown(pattern)}: {error}") from None


def _check_format(schema: Schema, keyword: str, path: str) -> None:
    name = schema[keyword]
    if name not in FORMATS or ("type" in schema and "string" not in schema["type"]):
        del schema[keyword]  # an annotation
    elif name in FORMAT_PATTERNS:
        del schema[keyword]
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": FORMAT_PATTERNS[name]}]


_CHECKS: Final[Mapping[str, Callable[[Schema, str, str], None]]] = MappingProxyType(
    {
        **dict.fromkeys(("maxItems", "maxLength", "maxProperties"), _drop_large),
        "minProperties": _check_least_properties,
        **dict.fromkeys(("enum", "const"), _check_const),
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "format": _check_format,
    }
)
