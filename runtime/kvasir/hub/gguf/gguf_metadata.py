"""Typed access to the metadata of a GGUF file. Errors name file and key."""

import struct
from copy import copy
from typing import Any

from kvasir.hub.gguf.gguf_file import GGUFHeader
from kvasir.hub.hub_errors import HubError


class Metadata:
    """The keys of a model: those of its architecture are named without the prefix."""

    def __init__(self, header: GGUFHeader, name: str) -> None:
        self.architecture = header.architecture
        self.shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        self._values = header.metadata
        self.name = name

    def with_default(self, key: str, value: Any) -> "Metadata":
        other = copy(self)
        other._values = {f"{self.architecture}.{key}": value} | self._values
        return other

    def has(self, tensor: str) -> bool:
        return tensor in self.shapes

    def of_file(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of the architecture; a list of equal values counts as one."""
        value = self._values.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]
        return shortest(value) if isinstance(value, float) else value

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, value, f"a whole number, {least} or more")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, value, "a number")
        return float(value)

    def error(self, key: str, value: Any, wanted: str) -> HubError:
        found = "is missing" if value is None else f"is {str(value)[:80]}"
        return HubError(f"{self.name}: {self.architecture}.{key} {found}, it must be {wanted}")


def shortest(value: float) -> float:
    """Return the shortest decimal that float32 stores as this value.

    >>> shortest(9.999999747378752e-06)
    1e-05
    """
    for digits in range(6, 9):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == struct.pack("<f", value):
            return candidate
    return value
