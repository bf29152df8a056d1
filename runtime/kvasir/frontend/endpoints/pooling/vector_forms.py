"""The forms of a vector in an answer: numbers, bits, or bytes in base64."""

import base64
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


def numbers(vector: bytes) -> Vector:
    return np.frombuffer(vector, "<f4")


def in_base64(vector: Vector, dtype: str = "float32", endianness: str = "little") -> str:
    """Return the numbers' bytes. `dtype`: a key of DTYPES; `endianness`: "big", or anything else for little."""
    written = DTYPES[dtype](vector)  # little endian, as all machines that Kvasir runs on
    return base64.b64encode((written.byteswap() if endianness == "big" else written).tobytes()).decode()


def bits(vector: Vector) -> list[int]:
    """Return a byte for each 8 numbers, the first number in its highest bit: 0 if it is below 0.

    >>> bits(np.array([0.5, -0.1, -2.0, 0.2, -1, -1, -1, 0], np.float32))
    [145]
    """
    return list(map(int, np.packbits(vector >= 0)))


def signed_bits(vector: Vector) -> list[int]:
    """Return `bits`, minus 128 each."""
    return [each - 128 for each in bits(vector)]


def _bfloat16(vector: Vector) -> npt.NDArray[np.uint16]:
    # Rounds to the nearest, and to even between two.
    word = vector.view(np.uint32)
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)


DTYPES: Final = MappingProxyType[str, Callable[[Vector], npt.NDArray[np.generic]]]({
    "float32": lambda vector: vector,
    "float16": lambda vector: vector.astype(np.float16),
    "bfloat16": _bfloat16,
})  # fmt: skip
