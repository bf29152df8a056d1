"""Values of an InferenceService that the schema cannot check entirely."""

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeVar

from kvasir_contract.units import parse_bytes

Fields = Mapping[str, Any]
Value = TypeVar("Value")

# not negative
_QUANTITY: Final = re.compile(r"\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?", re.ASCII)


class InvalidSpec(ValueError):
    """The message names the field and the accepted values."""


def parsed(parse: Callable[[Any], Value], fields: Fields, name: str, where: str) -> Value:
    """Parse a field. Raises InvalidSpec with its path below spec: `where` and `name`."""
    try:
        return parse(fields[name])
    except ValueError as error:
        raise InvalidSpec(f"spec.{where}.{name}: {error}") from None


def optional_size(fields: Fields, name: str, where: str) -> int | None:
    return parsed(_parse_size, fields, name, where) if name in fields else None


def _parse_size(value: str | int) -> int:
    size = parse_bytes(value)
    if size < 1:
        raise ValueError(f"{value!r} is too small: use at least 1 byte")
    return size


def parse_quantity(value: object) -> str:
    """Return the quantity as a string, which every JSON library preserves."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return format(Decimal(repr(value)), "f")
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not a valid quantity: use a number or a string such as 500m or 4Gi")


def secret_name(fields: Fields, name: str) -> str | None:
    reference = fields.get(name)
    return reference["name"] if reference else None
