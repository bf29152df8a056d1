"""AdaptiveDrafter: a Drafter that takes guesses from a source, and fewer of them while few are right."""

from collections.abc import Sequence
from typing import Final, Protocol

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.step_drafts import Drafter

# Below it, drafts cost more than they save.
MIN_ACCEPTANCE: Final = 0.3
# So four rejections in a row switch drafts off: 0.7 × 0.8⁴ = 0.29.
_FIRST_RATE: Final = 0.7
_WEIGHT: Final = 0.2
# Until one draft is tried; twice as many after each wrong one.
PAUSE_TOKENS: Final = 16
MAX_PAUSE_TOKENS: Final = 256


class DraftLength:
    def __init__(self, most: int) -> None:
        self._most = most
        self._length = most
        self._rate = _FIRST_RATE
        self._pause = PAUSE_TOKENS
        self._resumes_at = 0

    def at(self, num_tokens: int) -> int:
        """Return how many tokens to guess when the request has so many; 0 while drafts are off."""
        if self._rate >= MIN_ACCEPTANCE:
            return self._length
        return 1 if num_tokens >= self._resumes_at else 0

    def verified(self, drafted: int, accepted: int, num_tokens: int) -> None:
        was_off = self._rate < MIN_ACCEPTANCE
        if was_off and accepted:
            self._rate, self._length, self._pause = _FIRST_RATE, 1, PAUSE_TOKENS
        elif was_off:
            self._pause = min(2 * self._pause, MAX_PAUSE_TOKENS)
        self._rate += _WEIGHT * (accepted / drafted - self._rate)
        # As in Hugging Face's assisted generation.
        self._length = min(max(self._length + (2 if accepted == drafted else -1), 1), self._most)
        if self._rate < MIN_ACCEPTANCE:
            self._resumes_at = num_tokens + self._pause


class GuessSource(Protocol):
    def guess(self, request: EngineRequest, most: int) -> Sequence[int]:
        """Return up to `most` tokens that may follow the known ones."""
        ...

    def ended(self, request: EngineRequest) -> None: ...


class AdaptiveDrafter(Drafter):
    def __init__(self, source: GuessSource, most: int) -> None:
        self._source = source
        self._most = most
        self._lengths: dict[EngineRequest, DraftLength] = {}

    def wants(self, request: EngineRequest) -> bool:
        # If the known tokens have been seen before, the pending one probably continues them.
        return self._length(request) > 0 and len(self._source.guess(request, 2)) == 2

    def propose(self, request: EngineRequest, most: int) -> Sequence[int]:
        most = min(most, self._length(request))
        return self._source.guess(request, most) if most else ()

    def verified(self, request: EngineRequest, drafted: int, accepted: int) -> None:
        if (length := self._lengths.get(request)) is not None and drafted:
            length.verified(drafted, accepted, request.num_tokens)

    def ended(self, request: EngineRequest) -> None:
        self._lengths.pop(request, None)
        self._source.ended(request)

    def _length(self, request: EngineRequest) -> int:
        length = self._lengths.get(request)
        if length is None:
            length = self._lengths[request] = DraftLength(self._most)
        return length.at(request.num_tokens)
