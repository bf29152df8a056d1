"""Finds schemas that no finite value matches."""

from collections.abc import Callable, Sequence
from typing import Any, Final

Schema = dict[str, Any]
_MAX_ROUNDS: Final = 100


def endless_schemas(schemas: dict[int, Schema], resolve: Callable[[str], Any]) -> set[int]:
    """Return the ids of schemas that match only endless values, such as {"$ref": "#"}.

    A schema ends if all schemas that each of its values contains end. Very deep ones may be missing.
    """
    endless = set(schemas)
    for _ in range(_MAX_ROUNDS):
        before = len(endless)
        for key in reversed(schemas):
            if key in endless and _ends(schemas[key], endless, resolve):
                endless.remove(key)
        if len(endless) == before:
            return endless
    return set()


def _ends(schema: Schema, endless: set[int], resolve: Callable[[str], Any]) -> bool:
    def ends(part: Any) -> bool:
        return id(part) not in endless

    if "$ref" in schema and not ends(resolve(schema["$ref"])):
        return False
    if not all(map(ends, schema.get("allOf", ()))):
        return False
    if not all(any(map(ends, schema[keyword])) for keyword in ("anyOf", "oneOf") if keyword in schema):
        return False
    return _has_other_types(schema) or all(map(ends, _parts_of_all_values(schema)))


def _has_other_types(schema: Schema) -> bool:
    """Return whether values other than arrays and objects may match."""
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type", "null")
    return any(name not in ("array", "object") for name in ([types] if isinstance(types, str) else types))


def _parts_of_all_values(schema: Schema) -> Sequence[Any]:
    """Return the schemas of required properties or items."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if len(types) > 1:  # one of them may end
        return ()
    if types == ["object"]:
        properties = schema.get("properties", {})
        return [properties[name] for name in schema.get("required", ()) if name in properties]
    least = schema.get("minItems", 0)
    items = schema.get("items", True)
    first = schema.get("prefixItems", items if isinstance(items, list) else [])
    rest = [items] if least > len(first) and not isinstance(items, list) else []
    return [*first[:least], *rest]
