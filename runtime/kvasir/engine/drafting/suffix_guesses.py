"""SuffixGuesses: what most often followed the last tokens, in the request and in earlier outputs.

After SuffixDecoding (arXiv 2411.04975), with hash tables of n-grams instead of suffix trees.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvasir.engine.drafting.adaptive_drafter import GuessSource
from kvasir.engine.drafting.ngram_index import NgramIndex
from kvasir.engine.drafting.past_outputs import END, PastOutputs
from kvasir.engine.engine_request import EngineRequest

SHORTEST_MATCH: Final = 3
# Per guess: about a millisecond.
MAX_INDEXED_TOKENS: Final = 1024
# The newest: more hardly change the most frequent follower.
MAX_PLACES: Final = 16


@dataclass(frozen=True)
class SuffixLimits:
    longest_match: int
    tokens_per_matched: float
    min_probability: float
    max_outputs: int


class SuffixGuesses(GuessSource):
    def __init__(self, limits: SuffixLimits) -> None:
        self._limits = limits
        self._own: dict[EngineRequest, NgramIndex] = {}
        self._past = PastOutputs(SHORTEST_MATCH, limits.max_outputs)

    def guess(self, request: EngineRequest, most: int) -> Sequence[int]:
        text, key = request.token_ids, request.chain_root.digest
        own = self._own.get(request)
        if own is None:
            own = self._own[request] = NgramIndex(SHORTEST_MATCH)
        own.extend(text, MAX_INDEXED_TOKENS)
        self._past.index(key, MAX_INDEXED_TOKENS)
        if len(text) < SHORTEST_MATCH:
            return ()
        ngram = text[-SHORTEST_MATCH:]
        places = [(text, place) for place in own.positions(text, ngram, before=len(text) - 1)][:MAX_PLACES]
        for found in self._past.places(key, ngram):
            if len(places) == 2 * MAX_PLACES:
                break
            places.append(found)
        longest, places = self._longest(text, places)
        most = min(most, int(self._limits.tokens_per_matched * longest))
        return likely_continuation(places, most, self._limits.min_probability)

    def ended(self, request: EngineRequest) -> None:
        self._own.pop(request, None)
        self._past.add(request.chain_root.digest, request.token_ids[request.num_prompt_tokens :])

    def _longest(
        self, text: "array[int]", places: list[tuple["array[int]", int]]
    ) -> tuple[int, list[tuple["array[int]", int]]]:
        # The matched tokens, and the places that match as many.
        most = min(self._limits.longest_match, len(text))
        lengths = [common_suffix(text, other, place, most) for other, place in places]
        longest = max(lengths, default=0)
        return longest, [each for each, length in zip(places, lengths, strict=True) if length == longest]


def common_suffix(text: "array[int]", other: "array[int]", place: int, most: int) -> int:
    """Return how many tokens up to `place` equal the last ones of the text, `most` at most."""
    count = 0
    while count < most and count <= place and other[place - count] == text[-1 - count]:
        count += 1
    return count


def likely_continuation(places: list[tuple["array[int]", int]], most: int, min_probability: float) -> list[int]:
    """Follow the most frequent token again and again, while the whole path is probable enough.

    >>> text = array("I", [1, 2, 3, 1, 2, 3, 1, 2, 9])
    >>> likely_continuation([(text, 7), (text, 4), (text, 1)], most=3, min_probability=0.5)
    [3, 1, 2]
    """
    result: list[int] = []
    total = len(places)
    while places and len(result) < most:
        places = [(text, place + 1) for text, place in places if place + 1 < len(text)]
        followers = Counter(text[place] for text, place in places)
        followers.pop(END, None)
        if not followers:
            break
        token, count = followers.most_common(1)[0]  # the newest of equally frequent ones
        if count < min_probability * total:
            break
        result.append(token)
        places = [(text, place) for text, place in places if text[place] == token]
    return result
