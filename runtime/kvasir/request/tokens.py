"""Token ids in memory and on the link: four bytes each."""

import sys
from array import array
from collections.abc import Iterable
from typing import Final

TOKEN_BYTES: Final = 4
_TYPE: Final = "I"
assert array(_TYPE).itemsize == TOKEN_BYTES, "this platform has no 32-bit unsigned int in C"


def token_array(token_ids: Iterable[int] = ()) -> "array[int]":
    # OverflowError: an id is not in 0 to 2**32 - 1
    return array(_TYPE, token_ids)


def packed(token_ids: Iterable[int]) -> bytes:
    return to_wire(token_array(token_ids))


def to_wire(token_ids: "array[int]") -> bytes:
    # little-endian
    if sys.byteorder == "big":
        token_ids = token_ids[:]
        token_ids.byteswap()
    return token_ids.tobytes()


def from_wire(*parts: bytes) -> "array[int]":
    """Return the tokens of all parts. Raises ValueError for an incomplete token."""
    token_ids = array(_TYPE)
    for part in parts:
        token_ids.frombytes(part)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return token_ids
