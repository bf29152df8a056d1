"""JSON Schemas for the loads of compare.py. Every output goes on beyond any max_tokens of a measurement."""

from typing import Any, Final

_KINDS: Final = ("ready", "starting", "failed", "unknown", "pending", "draining", "stopped")
# An entry has some twenty tokens or more.
_FEWEST_ENTRIES: Final = 100


def schema(name: str) -> dict[str, Any]:
    """Return a schema that is like no other: its names have `name` in them."""
    entry = {
        "type": "object",
        "properties": {
            f"id_{name}": {"type": "integer", "minimum": 0, "maximum": 100_000},
            "label": {"type": "string", "maxLength": 40},
            f"state_{name}": {"enum": [*_KINDS, name]},
            "ratio": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,12}$"}, "maxItems": 5},
        },
        "required": [f"id_{name}", "label", f"state_{name}", "ratio", "tags"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {f"entries_{name}": {"type": "array", "items": entry, "minItems": _FEWEST_ENTRIES}},
        "required": [f"entries_{name}"],
        "additionalProperties": False,
    }


def response_format(name: str) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema(name)}}
