"""OutputGuide: the tokens that may follow in one output: first its reasoning, then its grammar."""

import copy
from collections.abc import Sequence
from typing import Final

import llguidance
import numpy as np
import numpy.typing as npt

from kvasir.engine.engine_request import GrammarTooComplex, GuideError
from kvasir.request.constraint import OutputConstraint

BITS: Final = 32


class OutputGuide:
    """The state of a constraint. Not thread-safe.

    With a `reasoning_start`, the first token decides whether there is a reasoning. The sequence may end only when
    the output matches the grammar.
    """

    def __init__(
        self,
        constraint: OutputConstraint,
        matcher: llguidance.LLMatcher | None,
        *,
        vocab_size: int,
        known_tokens: int,
        eos_token_ids: Sequence[int],
    ) -> None:
        """`matcher`: at the start of the grammar, owned by this object; None without a grammar. It may know more
        tokens (`known_tokens`) than the model.
        """
        self._end = constraint.reasoning_end
        self._budget = constraint.thinking_budget
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos = frozenset(eos_token_ids)
        # begins the reasoning if it is the first token
        self._start = constraint.reasoning_start if self._end else None
        self._reasoning = bool(self._end) and self._start is None
        self._reasoned_tokens = 0
        self._ended_by = 0  # tokens of `reasoning_end` at the end of the output
        self._fallbacks = _fallbacks(self._end)
        self._words = np.empty(-(-known_tokens // BITS), np.uint32)

    @property
    def is_free(self) -> bool:
        """Return whether no mask is needed."""
        return self._matcher is None and not self._forces_the_end

    @property
    def is_complete(self) -> bool:
        """Return whether the output matches and only an end-of-sequence token may follow."""
        if self._reasoning or self._start is not None:
            return False
        return self._matcher is not None and self._matcher.is_stopped()

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens of the only text that may follow; none if there is a choice."""
        # Only the first is certain, because llguidance tokenizes the text as a whole.
        if self._forces_the_end:
            return self._end[self._ended_by : self._ended_by + 1]
        if self._matcher is None or self._reasoning or self._start is not None:
            return ()
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced if forced and forced[0] < self._vocab_size else ()

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        # bit i % 32 of word i // 32 is token i; mask: [ceil(vocab / 32)]
        if self._forces_the_end:
            mask[:] = 0
            _set(mask, self._end[self._ended_by])
        elif self._matcher is None:
            self._allow_all(mask)
        elif self._reasoning:
            self._allow_all(mask)
            for token in self._eos.difference(self._end):
                _clear(mask, token)
        else:
            self._fill_from(self._matcher, mask)
            if self._start is not None:
                _set(mask, self._start)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Advance over tokens of the output. Raises GuideError for a forbidden one, or GrammarTooComplex."""
        for place, token in enumerate(token_ids):
            start, self._start = self._start, None
            if token == start:
                self._reasoning = True
                self._reasoned_tokens = 1
                continue
            if not self._reasoning:
                self._consume(token_ids[place:])
                return
            self._accept_reasoning(token)

    def copy(self) -> "OutputGuide":
        copied = copy.copy(self)
        copied._matcher = self._matcher and self._matcher.deep_copy()
        return copied

    @property
    def _forces_the_end(self) -> bool:
        return self._reasoning and self._budget is not None and self._reasoned_tokens >= self._budget

    def _accept_reasoning(self, token: int) -> None:
        if self._forces_the_end and token != self._end[self._ended_by]:
            raise GuideError(
                f"token {token} continues a reasoning that has used its budget of {self._budget} tokens: expected "
                f"{self._end[self._ended_by]}"
            )
        if self._matcher is not None and token in self._eos and token not in self._end:
            raise GuideError(f"token {token} ends the sequence before its grammar has begun")
        self._reasoned_tokens += 1
        while self._ended_by and token != self._end[self._ended_by]:
            self._ended_by = self._fallbacks[self._ended_by - 1]
        if token == self._end[self._ended_by]:
            self._ended_by += 1
        self._reasoning = self._ended_by < len(self._end)

    def _consume(self, token_ids: Sequence[int]) -> None:
        if self._matcher is None:
            return
        text: list[int] = []
        for token in token_ids:
            if token not in self._eos:
                text.append(token)
                continue
            self._consume_text(self._matcher, text)
            self._consume_end(self._matcher, token)
            text = []
        self._consume_text(self._matcher, text)

    def _consume_text(self, matcher: llguidance.LLMatcher, tokens: list[int]) -> None:
        allowed = matcher.validate_tokens(tokens)
        if matcher.is_error():
            raise _too_complex(matcher)
        if allowed < len(tokens):
            raise GuideError(f"the grammar does not allow token {tokens[allowed]} after the output so far")
        if tokens and not matcher.consume_tokens(tokens):
            raise _too_complex(matcher)

    def _consume_end(self, matcher: llguidance.LLMatcher, token: int) -> None:
        if not (matcher.is_stopped() and matcher.is_accepting()) and not matcher.consume_token(token):
            raise GuideError(f"token {token} ends the sequence before the output matches the grammar")

    def _fill_from(self, matcher: llguidance.LLMatcher, mask: npt.NDArray[np.uint32]) -> None:
        matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if matcher.is_error():
            raise _too_complex(matcher)
        mask[:] = self._words[: len(mask)]
        self._clear_padding(mask)

    def _allow_all(self, mask: npt.NDArray[np.uint32]) -> None:
        mask[:] = 0xFFFFFFFF
        self._clear_padding(mask)

    def _clear_padding(self, mask: npt.NDArray[np.uint32]) -> None:
        if used := self._vocab_size % BITS:
            mask[-1] &= (1 << used) - 1


def _too_complex(matcher: llguidance.LLMatcher) -> GrammarTooComplex:
    cause = matcher.get_error().partition("\n")[0]
    return GrammarTooComplex(f"the grammar needs too much work after the output so far: simplify it ({cause})")


def _fallbacks(pattern: Sequence[int]) -> list[int]:
    # the longest border of each prefix (Knuth, Morris and Pratt, 1977)
    lengths = [0] * len(pattern)
    for place in range(1, len(pattern)):
        length = lengths[place - 1]
        while length and pattern[place] != pattern[length]:
            length = lengths[length - 1]
        lengths[place] = length + 1 if pattern[place] == pattern[length] else length
    return lengths


def _set(mask: npt.NDArray[np.uint32], token: int) -> None:
    mask[token // BITS] |= np.uint32(1 << token % BITS)


def _clear(mask: npt.NDArray[np.uint32], token: int) -> None:
    mask[token // BITS] &= ~np.uint32(1 << token % BITS)
