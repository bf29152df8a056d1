"""Convert a JSON object to a request struct, and reject unknown fields and unsupported features by name.

Clients send defaults for features that this server does not have. A field of such a feature is accepted if its
value does not request the feature, and rejected otherwise. null counts as absent. Fields that are accepted without
any effect (labels such as `user`) are fields of the struct.
"""

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from kvasir.frontend.errors import ApiError, bad_field

Request = TypeVar("Request", bound=msgspec.Struct)

_JSON_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}

_LONGEST_TYPO = 64
"""Characters of an unknown name that is compared with the known ones: that takes seconds for megabytes."""


@dataclass(frozen=True)
class Schema(Generic[Request]):
    """A request struct and the fields around it."""

    struct: type[Request]
    not_yet: Mapping[str, tuple[Any, ...]]
    """Fields of features that are not there yet → the values that ask for nothing."""
    children: Mapping[str, "Schema[Any]"] = field(default_factory=dict)
    """Fields that hold an object, or a list of them → its schema."""

    @functools.cached_property
    def fields(self) -> frozenset[str]:
        return frozenset(f.encode_name for f in msgspec.structs.fields(self.struct))


def parse(body: Mapping[str, Any], schema: Schema[Request]) -> Request:
    """The request struct. Raises ApiError 400 that names the field."""
    try:
        return msgspec.convert(_clean(body, schema, ""), schema.struct)
    except msgspec.ValidationError as error:
        raise _explain(str(error), body) from None


def _clean(body: Mapping[str, Any], schema: Schema[Any], path: str) -> dict[str, Any]:
    """The fields of the struct, without nulls. Raises ApiError for the others."""
    result = {}
    for name, value in body.items():
        if name in schema.fields:
            if value is not None:
                child = schema.children.get(name)
                result[name] = value if child is None else _clean_child(value, child, path + name)
        elif name in schema.not_yet:
            if value is not None and not any(_same(value, harmless) for harmless in schema.not_yet[name]):
                raise bad_field(path + name, f"{path}{name} is not supported yet{_accepted(schema.not_yet[name])}")
        else:
            raise bad_field(path + name, f"unknown field {path}{name}{_suggestion(name, schema)}")
    return result


def _clean_child(value: Any, schema: Schema[Any], path: str) -> Any:
    """Values of a wrong type stay as they are: the conversion names them."""
    if isinstance(value, dict):
        return _clean(value, schema, path + ".")
    if isinstance(value, list):
        return [
            _clean(item, schema, f"{path}[{index}].") if isinstance(item, dict) else item
            for index, item in enumerate(value)
        ]
    return value


def _same(value: Any, harmless: Any) -> bool:
    """Equal, where True is not 1."""
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)


def _accepted(harmless: tuple[Any, ...]) -> str:
    if not harmless:
        return ": leave it out"
    values = " or ".join(msgspec.json.encode(value).decode() for value in harmless)
    return f": leave it out (or send {values})"


def _suggestion(name: str, schema: Schema[Any]) -> str:
    if len(name) > _LONGEST_TYPO:
        return ""
    close = difflib.get_close_matches(name, schema.fields, n=1)
    return f": did you mean {close[0]}?" if close else ""


def _explain(message: str, body: Mapping[str, Any]) -> ApiError:
    """The decoder's message with the field's name in front and JSON's names for types."""
    text, _, place = message.partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    if missing := re.search(r"missing required field `(\w+)`", text):
        path = f"{path}.{missing[1]}".lstrip(".")
        return bad_field(path, f"{path} is missing")
    text = re.sub(r"`([\w| ]+)`", lambda m: " or ".join(_JSON_NAMES.get(n, n) for n in m[1].split(" | ")), text)
    text = text[:1].lower() + text[1:]
    if "an integer" in text and text.endswith("got a number") and _has_huge(body.get(re.split(r"\W", path)[0])):
        text = "out of range: integers have at most 64 bits"
    return bad_field(path or None, f"{path}: {text}" if path else text)


def _has_huge(value: Any) -> bool:
    """An integer of more than 64 bits, which JSON's reader made a float of."""
    if isinstance(value, list | dict):
        return any(map(_has_huge, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and abs(value) >= 2**63
