"""DraftLength: how many tokens to guess for a request, by the share of its guesses that were right."""

from typing import Final

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
