"""Which JSON types a schema allows, for formats that write values without quotes."""

from typing import Any, Final

MAX_DEPTH: Final = 16
_TYPE_OF: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def schema_types(schema: Any, root: dict[str, Any], depth: int = 0) -> set[str]:
    """Return the types; an empty set if the schema allows any. `root`: the whole document."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return set()
    if (declared := schema.get("type")) is not None:
        return {each for each in (declared if isinstance(declared, list) else [declared]) if isinstance(each, str)}
    if "const" in schema:
        return {_type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return {_type_of(value) for value in schema["enum"]}
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return set().union(*(schema_types(each, root, depth + 1) for each in schema[keyword]))
    if isinstance(schema.get("allOf"), list):
        return next(filter(None, (schema_types(each, root, depth + 1) for each in schema["allOf"])), set())
    if isinstance(schema.get("$ref"), str):
        return schema_types(referenced(schema["$ref"], root), root, depth + 1)
    return set()


def referenced(reference: str, root: dict[str, Any]) -> Any:
    """Return the schema that a reference names; None if it is not in the document."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _type_of(value: Any) -> str:
    return "null" if value is None else _TYPE_OF[type(value)]
