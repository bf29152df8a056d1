"""Names one wrong field of a body that pydantic rejected, and the accepted values, in one sentence."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvasir.frontend.errors import ApiError, bad_field

_EXPECTED: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "string_or_list_type": "a string or an array",
    "model_attributes_type": "an object",
}
_RANGES: Final = {
    "greater_than_equal": ("ge", ">="),
    "less_than_equal": ("le", "<="),
    "greater_than": ("gt", ">"),
    "less_than": ("lt", "<"),
}
_LENGTHS: Final = {
    "too_short": ("min_length", ">="),
    "too_long": ("max_length", "<="),
    "string_too_short": ("min_length", ">="),
    "string_too_long": ("max_length", "<="),
}

Path = tuple[str | int, ...]


def explain(error: ValidationError, body: Mapping[str, Any]) -> ApiError:
    # The deepest error: in a union, that of the alternative that fits best.
    found = [(_path(each, body), each) for each in error.errors(include_url=False)]
    deepest = max(found, key=lambda pair: len(pair[0]))[0]
    here = [each for path, each in found if path == deepest]
    name = _format(deepest)
    if here[0]["type"] == "missing":
        return bad_field(name, f"{name} is missing")
    return bad_field(name, f"{name}: {_problem(here)}")


def _problem(errors: list[ErrorDetails]) -> str:
    kinds = [_EXPECTED[each["type"]] for each in errors if each["type"] in _EXPECTED]
    if kinds:
        words = [_context(each)["expected"] for each in errors if each["type"] == "literal_error"]
        kinds = [f"one of {each}" for each in words] + kinds
        value = errors[0]["input"]
        if kinds == ["an integer"] and isinstance(value, float) and abs(value) >= 2**63:
            return "out of range: integers have at most 64 bits"  # JSON's reader made a float of it
        return f"expected {' or '.join(dict.fromkeys(kinds))}, got {_kind_of(value)}"
    first = errors[0]
    context = _context(first)
    if first["type"] in _RANGES:
        key, sign = _RANGES[first["type"]]
        number = context[key]
        kind = "a number" if isinstance(number, float) else "an integer"
        return f"expected {kind} {sign} {number:g}" if kind == "a number" else f"expected {kind} {sign} {number}"
    if first["type"] in _LENGTHS:
        key, sign = _LENGTHS[first["type"]]
        return f"expected a length {sign} {context[key]}"
    if first["type"] == "value_error":
        return str(context["error"])
    return first["msg"][:1].lower() + first["msg"][1:]


def _context(error: ErrorDetails) -> Mapping[str, Any]:
    return error.get("ctx", {})


def _path(error: ErrorDetails, body: Any) -> Path:
    # Without pydantic's names for the alternatives of a union.
    path: list[str | int] = []
    for step in error["loc"]:
        if (isinstance(body, dict) and step in body) or (isinstance(body, list) and isinstance(step, int)):
            path.append(step)
            body = body[step]  # type: ignore[index]  # checked in the line before
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return tuple(path)


def _format(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
