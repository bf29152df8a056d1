"""Reads the fields of structural tags. Each error is a ValueError with the path of the field."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

MAX_REPEAT: Final = 1_000  # bounds of `repeat`
# The fields of each format. Others are refused: they may be conditions.
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "const_string": frozenset({"value"}),
    "json_schema": frozenset({"json_schema", "style", "any_order"}),
    "regex": frozenset({"pattern"}),
    "any_text": frozenset(),
    "sequence": frozenset({"elements"}),
    "or": frozenset({"elements"}),
    "optional": frozenset({"content"}),
    "star": frozenset({"content"}),
    "plus": frozenset({"content"}),
    "repeat": frozenset({"content", "min", "max"}),
    "tag": frozenset({"begin", "content", "end"}),
    "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first"}),
    "tags_with_separator": frozenset({"tags", "separator", "at_least_one", "stop_after_first"}),
}


def refuse_unknown(given: Mapping[str, Any], kind: str, path: str) -> None:
    for name, value in given.items():
        is_asked = value is not None and value is not False and value != []
        if name != "type" and name not in _FIELDS[kind] and is_asked:
            raise ValueError(f"{path}.{name} is not supported: leave it out")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REPEAT


def text_of(given: Any, name: str, path: str) -> str:
    value = given.get(name) if isinstance(given, Mapping) else None
    if not isinstance(value, str):
        raise ValueError(f"{path}{name}: give a text")
    return value


def object_of(given: Any, name: str, path: str) -> Mapping[str, Any]:
    value = given.get(name) if isinstance(given, Mapping) else None
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}{name}: give a JSON Schema that is an object")
    return value


def list_of(given: Mapping[str, Any], name: str, path: str) -> Sequence[Any]:
    value = given.get(name)
    if not isinstance(value, list | tuple):
        raise ValueError(f"{path}{name}: give a list")
    return value


def flag_of(given: Mapping[str, Any], name: str, path: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{path}{name}: give true or false")
    return value
