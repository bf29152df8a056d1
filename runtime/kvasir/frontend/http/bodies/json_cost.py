"""Bounds the cost of parsing JSON by counting its values first."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from kvasir.frontend.errors import ApiError

# less than 10 ms to parse, whatever the content
SMALL: Final = 256 * 1024
# 0.2 µs per array or object, 0.3 µs per member of an object
MAX_CONTAINERS: Final = 100_000
MAX_MEMBERS: Final = 150_000
# commas, at 0.05 µs each; a longer context raises the limit to its length
MAX_VALUES: Final = 1_000_000

# with keys, in a body that is counted without its strings: 3 µs each
MAX_STRINGS: Final = 2_000_000

_PIECE: Final = 2**16
"""Bytes per scan."""
_COUNTED: Final = 2**20
"""Bytes per count."""
_IN_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_QUOTE: Final = ord('"')

Text = bytes | bytearray


@dataclass(frozen=True)
class _Counts:
    containers: int
    members: int
    commas: int

    @classmethod
    def of(cls, text: Text, start: int = 0, end: int | None = None) -> "_Counts":
        brackets, colons, commas = (
            sum(text.count(each, start, end) for each in kind) for kind in (b"[{", b":", b",")
        )
        return cls(brackets, colons, commas)

    def __add__(self, other: "_Counts") -> "_Counts":
        return _Counts(self.containers + other.containers, self.members + other.members, self.commas + other.commas)

    def problem(self, max_values: int) -> str | None:
        if self.containers > MAX_CONTAINERS:
            return f"more than {MAX_CONTAINERS} arrays and objects"
        if self.members > MAX_MEMBERS:
            return f"more than {MAX_MEMBERS} members of objects"
        if self.commas > max_values:
            return f"more than {max_values} values"
        return None


class CostCheck:
    """Counts or parses one large body at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        # these bodies wait only for each other, because this count takes seconds
        self._thread = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, body: Text, context: int) -> AsyncIterator[None]:
        """Wait for the turn to parse a body that is not SMALL. `context`: tokens. Raises ApiError 400."""
        # The parser (orjson) holds the interpreter lock, so even in a thread it stops the event loop, for 100 ms at
        # these limits.
        await self._check(body, max(MAX_VALUES, context))
        async with self._turn:
            await asyncio.sleep(0)  # others get a turn before it is parsed
            yield
            await asyncio.sleep(0)  # and before it is validated

    async def _check(self, body: Text, max_values: int) -> None:
        # a count with the strings takes milliseconds and suffices for most bodies
        async with self._turn:
            counts = await _counts_with_strings(body)
        if counts.problem(max_values) is None:
            return
        async with self._thread:
            problem = await asyncio.to_thread(_problem_outside_strings, body, max_values)
        if problem is not None:
            message = f"the request body has {problem}: send it in several requests"
            raise ApiError(400, message, code="too_many_values")


async def _counts_with_strings(body: Text) -> _Counts:
    counts = _Counts(0, 0, 0)
    for start in range(0, len(body), _COUNTED):
        counts += _Counts.of(body, start, start + _COUNTED)
        await asyncio.sleep(0)
    return counts


def _problem_outside_strings(body: Text, max_values: int) -> str | None:
    counts, outside = _Counts(0, 0, 0), bytearray()
    position, end, strings = 0, len(body), 0
    while position < end:
        stop = min(position + _PIECE, end)
        opening = body.find(b'"', position, stop)
        outside += body[position : stop if opening < 0 else opening]
        position = stop if opening < 0 else _end_of_string(body, opening + 1)
        strings += opening >= 0
        if strings > MAX_STRINGS:
            return f"more than {MAX_STRINGS} strings"
        if len(outside) >= _PIECE or position >= end:
            counts += _Counts.of(outside)
            outside.clear()
            if problem := counts.problem(max_values):
                return problem
    return None


def _end_of_string(body: Text, position: int) -> int:
    end = len(body)
    while position < end:
        match = _IN_STRING.match(body, position, min(position + _PIECE, end))
        assert match is not None  # it may be empty
        if match.end() == position and body[position] != _QUOTE:  # a backslash in the end
            return end
        position = match.end()
        if position < end and body[position] == _QUOTE:
            return position + 1
    return end
