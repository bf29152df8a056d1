"""Beam search by vLLM's rules.

Each step continues each live beam with its most likely tokens. A beam with an end token is complete; of the others
the `width` most likely ones stay live, up to `max_tokens`.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvasir.link.protocol import Logprobs
from kvasir.request.tokens import token_array


@dataclass(frozen=True, slots=True)
class _Place:
    """The log probabilities at one token, shared by beams."""

    before: "_Place | None"
    logprob: float
    rank: int
    top_ids: list[int]
    top: list[float]


@dataclass(frozen=True, slots=True)
class Beam:
    token_ids: "array[int]"
    logprob: float  # sum over its tokens
    ended: bool  # the last token is an end token
    _last: _Place | None

    def logprobs(self) -> Logprobs:
        places = list(self._places())[::-1]
        return Logprobs(
            [place.logprob for place in places],
            [place.rank for place in places],
            [place.top_ids for place in places],
            [place.top for place in places],
        )

    def _places(self) -> Iterator[_Place]:
        place = self._last
        while place is not None:
            yield place
            place = place.before


def candidates_of(width: int, num_end_ids: int) -> int:
    """Return how many of the most likely tokens a step needs per beam."""
    return max(2 * width, width + num_end_ids)


class BeamSearch:
    """The search for one prompt: `advance` until `live` is empty."""

    def __init__(
        self, width: int, prompt_length: int, max_tokens: int, end_ids: Collection[int], length_penalty: float
    ) -> None:
        self._width = width
        self._prompt_length = prompt_length
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self._length_penalty = length_penalty
        self.live = [Beam(token_array(), 0.0, False, None)]
        self.best: list[Beam] = []  # complete beams, at most `width`, the best first

    def advance(self, steps: Sequence[Logprobs]) -> None:
        """Continue each live beam. `steps`: log probabilities of the next tokens, in the same order."""
        following: list[Beam] = []
        complete: list[Beam] = []
        for beam, step in zip(self.live, steps, strict=True):
            for continued in self._continued(beam, step):
                (complete if continued.ended else following).append(continued)
        following.sort(key=lambda beam: beam.logprob, reverse=True)
        self.live = following[: self._width]
        if self.live and len(self.live[0].token_ids) == self._max_tokens:
            complete += self.live
            self.live = []
        self.best = sorted([*self.best, *complete], key=self.score, reverse=True)[: self._width]
        # unlike vLLM's, the search ends when no live beam can enter the result
        if len(self.best) == self._width and not any(map(self._can_become_best, self.live)):
            self.live = []

    def score(self, beam: Beam) -> float:
        # Four tokens, with the prompt and without the end token: (-1.5 - 0.5) / 4**1.0 = -0.5.
        return beam.logprob / math.pow(self._length(beam), self._length_penalty)

    def _length(self, beam: Beam) -> int:
        return self._prompt_length + len(beam.token_ids) - beam.ended

    def _continued(self, beam: Beam, step: Logprobs) -> Iterator[Beam]:
        top_ids, top = step.top_ids[0], step.top[0]
        for rank, (token_id, logprob) in enumerate(zip(top_ids, top, strict=True), 1):
            total = beam.logprob + logprob
            if total > -math.inf:  # also false for NaN
                token_ids = beam.token_ids[:]
                token_ids.append(token_id)
                place = _Place(beam._last, logprob, rank, top_ids, top)
                yield Beam(token_ids, total, token_id in self._end_ids, place)

    def _can_become_best(self, beam: Beam) -> bool:
        """Return whether a continuation may score above the last of the best."""
        # A log probability is at most 0: the best continuation adds 0, at the length that the penalty favours.
        length = self._prompt_length + self._max_tokens if self._length_penalty > 0 else self._length(beam)
        return beam.logprob / math.pow(length, self._length_penalty) > self.score(self.best[-1])
