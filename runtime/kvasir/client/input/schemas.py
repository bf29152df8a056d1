"""Writes the JSON Schemas of requests as text."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

# for JSON text that is read at all; grammars have lower bounds
MAX_SOURCE_BYTES: Final = 1024 * 1024

# keywords with a schema or a list of schemas
_SUBSCHEMAS: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
# keywords with schemas under names
_NAMED_SUBSCHEMAS: Final = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)


def schema_text(schema: Any, *, additional_properties: bool = True) -> str:
    """Return a schema, an object or JSON text, as JSON text. Raises ValueError.

    `additional_properties`: False forbids further properties in schemas that have `properties` and do not mention
    them.
    """
    text = encoded(loaded(schema))
    if len(text) > MAX_SOURCE_BYTES:
        raise ValueError(f"the schema has {len(text)} bytes as JSON: give at most {MAX_SOURCE_BYTES}")
    if additional_properties:
        return text.decode()
    value = orjson.loads(text)  # a copy
    for each in list(_schemas(value)):
        _close(each)
    return encoded(value).decode()


def loaded(value: Any) -> dict[str, Any]:
    """Return an object, given as such or as JSON text. Raises ValueError."""
    if isinstance(value, str):
        if len(value) > MAX_SOURCE_BYTES:
            raise ValueError(f"the JSON text has {len(value)} characters: give at most {MAX_SOURCE_BYTES}")
        try:
            value = orjson.loads(value.encode())
        except UnicodeEncodeError:
            raise ValueError("the JSON text holds half of a surrogate pair: send complete characters") from None
        except orjson.JSONDecodeError as error:
            raise ValueError(f"not a JSON text ({error}): give an object, or the JSON text of one") from None
    if not isinstance(value, Mapping):
        raise ValueError("not an object: give an object, or the JSON text of one")
    return dict(value)


def encoded(value: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        reason = "it is nested too deeply" if "Recursion" in str(error) else str(error)
        raise ValueError(f"the object cannot be written as JSON: {reason}") from None


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield all nested schemas, but not constants that look like schemas."""
    if isinstance(schema, list):
        for each in schema:
            yield from _schemas(each)
    if not isinstance(schema, dict):
        return
    yield schema
    for name, value in schema.items():
        if name in _SUBSCHEMAS:
            yield from _schemas(value)
        elif name in _NAMED_SUBSCHEMAS and isinstance(value, dict):
            for each in value.values():
                yield from _schemas(each)


def _close(schema: dict[str, Any]) -> None:
    has_properties = any(isinstance(schema.get(name), dict) for name in ("properties", "patternProperties"))
    if has_properties and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
