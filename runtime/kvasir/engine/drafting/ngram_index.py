"""NgramIndex: the places in a growing text where an n-gram stands."""

from array import array
from collections.abc import Iterator
from typing import Final
from zlib import crc32

MIN_BUCKETS: Final = 256
# Tokens per bucket: an index takes 5 to 8 bytes per token.
MAX_LOAD: Final = 4
# A client could choose n-grams with the same hash.
MAX_VISITED: Final = 64
_NOWHERE: Final = -1


class NgramIndex:
    """A hash table of the n-grams of one length, by the position of their last token."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._buckets = array("i", [_NOWHERE]) * MIN_BUCKETS  # newest position
        self._older = array("i")  # position → the one before it in its bucket

    @property
    def num_indexed(self) -> int:
        return len(self._older)

    def extend(self, text: "array[int]", most: int) -> int:
        """Index at most so many further tokens of the text; return their number."""
        if len(text) > MAX_LOAD * len(self._buckets):
            # Start again, at the caller's pace: one long pause would delay all requests.
            self._buckets = array("i", [_NOWHERE]) * (1 << (len(text).bit_length() - 1))
            self._older = array("i")
        length, buckets, older = self.length, self._buckets, self._older
        begin = len(older)
        end = min(begin + most, len(text))
        for position in range(begin, end):
            if position + 1 < length:
                older.append(_NOWHERE)
                continue
            bucket = crc32(text[position + 1 - length : position + 1]) % len(buckets)
            older.append(buckets[bucket])
            buckets[bucket] = position
        return end - begin

    def positions(self, text: "array[int]", ngram: "array[int]", before: int) -> Iterator[int]:
        """Yield indexed positions below `before` at which the n-gram ends, the newest first."""
        position = self._buckets[crc32(ngram) % len(self._buckets)]
        for _ in range(MAX_VISITED):
            if position == _NOWHERE:
                return
            if position < before and text[position + 1 - self.length : position + 1] == ngram:
                yield position
            position = self._older[position]
