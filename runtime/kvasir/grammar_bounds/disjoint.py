"""Finds branches of a `oneOf` that no value matches together. `oneOf` over such branches equals `anyOf`."""

from collections.abc import Callable
from typing import Any, Final

import orjson

Schema = dict[str, Any]
MAX_STEPS: Final = 8  # references and properties followed from a branch
# Comparisons per JSON Schema, about 0.2 s. By references, a small schema can ask for any number.
MAX_EFFORT: Final = 100_000
_NAMES_LIKE_A_COMPARISON: Final = 16  # required names that cost as much as a comparison


class Disjointness:
    """Compares branches of one JSON Schema, which must not change meanwhile."""

    def __init__(self, resolve: Callable[[str], Any]) -> None:
        self._resolve = resolve
        self._effort = 0
        # Constants and types, by `id(schema)`.
        self._values: dict[int, tuple[frozenset[bytes] | None, frozenset[str]]] = {}

    def is_certain(self, first: Any, second: Any, steps: int = MAX_STEPS) -> bool:
        """Return whether it is certain that no value matches both schemas."""
        self._effort += 1
        if first is False or second is False:
            return True
        if not isinstance(first, dict) or not isinstance(second, dict) or steps == 0 or self._effort > MAX_EFFORT:
            return False
        if "$ref" in first:
            return self.is_certain(self._resolve(first["$ref"]), second, steps - 1)
        if "$ref" in second:
            return self.is_certain(first, self._resolve(second["$ref"]), steps - 1)
        (first_values, first_types), (second_values, second_types) = self._values_of(first), self._values_of(second)
        if first_values is not None and second_values is not None and first_values.isdisjoint(second_values):
            return True
        if not first_types & second_types:
            return True
        return first_types == second_types == {"object"} and self._differ_in_a_property(first, second, steps - 1)

    def _values_of(self, schema: Schema) -> tuple[frozenset[bytes] | None, frozenset[str]]:
        """Return the constants that match, as canonical JSON or None for any, and the types."""
        if id(schema) not in self._values:
            self._values[id(schema)] = _constants(schema), frozenset(_types(schema))
        return self._values[id(schema)]

    def _differ_in_a_property(self, first: Schema, second: Schema, steps: int) -> bool:
        """Return whether a required property of one branch excludes the other."""
        required = set(first.get("required", ())), set(second.get("required", ()))
        self._effort += (len(required[0]) + len(required[1])) // _NAMES_LIKE_A_COMPARISON
        if _forbids(second, required[0]) or _forbids(first, required[1]):
            return True
        properties = first.get("properties", {}), second.get("properties", {})
        names = required[0] & required[1]
        constants = [name for name in names if _is_constant(properties[0].get(name))]
        return any(
            self.is_certain(properties[0].get(name, True), properties[1].get(name, True), steps)
            for name in (*sorted(constants), *sorted(names.difference(constants)))
        )


def _constants(schema: Schema) -> frozenset[bytes] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return (
        None
        if values is None
        else frozenset(orjson.dumps(_canonical(value), option=orjson.OPT_SORT_KEYS) for value in values)
    )


def _canonical(value: Any) -> Any:
    """Write 1.0 as 1, which JSON Schema calls equal."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_canonical(part) for part in value]
    return {name: _canonical(part) for name, part in value.items()} if isinstance(value, dict) else value


def _types(schema: Schema) -> set[str]:
    """Return the types that may match, with "number" for integers."""
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {"number" if name == "integer" else name for name in types}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None:
        return {"null", "boolean", "number", "string", "array", "object"}
    return {_type_of(value) for value in values}


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    names = {int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _forbids(schema: Schema, names: set[str]) -> bool:
    """Return whether no object with all these properties matches."""
    if schema.get("additionalProperties") is not False or "patternProperties" in schema:
        return False
    return not names <= schema.get("properties", {}).keys()


def _is_constant(schema: Any) -> bool:
    return isinstance(schema, dict) and "const" in schema
