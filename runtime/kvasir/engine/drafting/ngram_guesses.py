"""NgramGuesses: what followed the last n-gram at its most recent place in the request (prompt lookup)."""

from array import array
from collections.abc import Sequence
from typing import Final

from kvasir.engine.drafting.adaptive_drafter import GuessSource
from kvasir.engine.drafting.ngram_index import NgramIndex
from kvasir.engine.engine_request import EngineRequest

# Per guess. A longer prompt is guessed from some steps later.
MAX_INDEXED_TOKENS: Final = 1024
# Per guess, of all lengths: about a millisecond.
MAX_INDEXED_NGRAMS: Final = 4096
MAX_LENGTHS: Final = 8


class NgramGuesses(GuessSource):
    def __init__(self, shortest: int, longest: int) -> None:
        step = 1 + (longest - shortest) // MAX_LENGTHS
        self._lengths = sorted({*range(shortest, longest, step), longest}, reverse=True)
        self._most_indexed = min(MAX_INDEXED_TOKENS, MAX_INDEXED_NGRAMS // len(self._lengths))
        self._indexes: dict[EngineRequest, list[NgramIndex]] = {}

    def guess(self, request: EngineRequest, most: int) -> Sequence[int]:
        indexes = self._indexes.get(request)
        if indexes is None:
            indexes = self._indexes[request] = [NgramIndex(length) for length in self._lengths]
        text = request.token_ids
        for index in indexes:
            index.extend(text, self._most_indexed)
        for index in indexes:
            if index.num_indexed == len(text) > index.length:
                ngram = text[-index.length :]
                if (place := next(index.positions(text, ngram, before=len(text) - 1), None)) is not None:
                    return copied(text, place + 1, most)
        return ()

    def ended(self, request: EngineRequest) -> None:
        self._indexes.pop(request, None)


def copied(text: "array[int]", begin: int, count: int) -> "array[int]":
    """Return what stands at `begin` and after it, if the text goes on like that.

    >>> copied(array("I", [7, 1, 2, 1, 2]), 3, 5).tolist()
    [1, 2, 1, 2, 1]
    """
    part = text[begin : begin + count]
    while len(part) < count:  # a cycle
        part.extend(part[: count - len(part)])
    return part
