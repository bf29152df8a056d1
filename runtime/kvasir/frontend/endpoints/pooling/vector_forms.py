"""The forms of a vector in an answer: numbers, bits, or bytes in base64."""

import base64
import math
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

Vector: TypeAlias = "array[float]"
_INFINITE_FLOAT16: Final = 65520.0  # this number is rounded to infinity, smaller ones are not


def numbers(vector: bytes) -> Vector:
    found = array("f", vector)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def in_base64(vector: Vector, dtype: str = "float32", endianness: str = "little") -> str:
    """Return the numbers' bytes. `dtype`: a key of DTYPES; `endianness`: "big", or anything else for little."""
    letter, values = DTYPES[dtype]
    order = ">" if endianness == "big" else "<"
    return base64.b64encode(struct.pack(f"{order}{len(vector)}{letter}", *values(vector))).decode()


def bits(vector: Sequence[float]) -> list[int]:
    """Return a byte for each 8 numbers, the first number in its highest bit: 0 if it is below 0.

    >>> bits([0.5, -0.1, -2.0, 0.2, -1, -1, -1, 0])
    [145]
    """
    return [
        sum(0x80 >> place for place, number in enumerate(vector[start : start + 8]) if number >= 0)
        for start in range(0, len(vector), 8)
    ]


def signed_bits(vector: Sequence[float]) -> list[int]:
    """Return `bits`, minus 128 each."""
    return [each - 128 for each in bits(vector)]


def _float16(vector: Vector) -> Iterable[float]:
    return (each if abs(each) < _INFINITE_FLOAT16 else math.copysign(math.inf, each) for each in vector)


def _bfloat16(vector: Vector) -> Iterable[int]:
    # Rounds to the nearest, and to even between two.
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16 for word in array("I", vector.tobytes()))


# The letter of struct, and the values that it packs.
DTYPES: Final = MappingProxyType[str, tuple[str, Callable[[Vector], Iterable[float]]]]({
    "float32": ("f", lambda vector: vector), "float16": ("e", _float16), "bfloat16": ("H", _bfloat16),
})  # fmt: skip
