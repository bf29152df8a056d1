"""LogitRules: how a request changes its logits, given its tokens so far."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kvasir.request.params import SamplingParams
from kvasir.sampling.penalties import Ints, TokenCounts, Tokens, counts_with

Floats = npt.NDArray[np.float32]

_NONE: Ints = np.zeros(0, np.int64)


def has_rules(params: SamplingParams) -> bool:
    return bool(
        params.allowed_token_ids
        or params.bad_words
        or params.min_tokens
        or params.logit_bias
        or _is_penalised(params)
    )


class BadWords:
    """The tokens that would complete a bad word in the output (not the prompt, as in vLLM)."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        alone: set[int] = set()
        # by the token before the last, to look at few words in a step
        self._longer: dict[int, list[tuple[Tokens, int]]] = {}
        for word in words:
            if len(word) == 1:
                alone.add(word[0])
            else:
                beginning = np.array(word[:-1], np.int32)
                self._longer.setdefault(word[-2], []).append((beginning, word[-1]))
        self._alone = sorted(alone)

    @property
    def depend_on_output(self) -> bool:
        return bool(self._longer)

    def completing(self, output: Tokens) -> Ints:
        longer = self._longer.get(int(output[-1]), ()) if len(output) else ()
        found = [last for beginning, last in longer if _ends_with(output, beginning)]
        return np.array(self._alone + found, np.int64)


def _ends_with(output: Tokens, beginning: npt.NDArray[np.int32]) -> bool:
    return bool(np.array_equal(output[-len(beginning) :], beginning))


class LogitRules:
    def __init__(self, params: SamplingParams, num_prompt_tokens: int, eos_token_ids: Sequence[int]) -> None:
        bias = dict(params.logit_bias)
        self.allowed: Ints = np.unique(np.array(params.allowed_token_ids, np.int64))  # empty: all
        self.biased: Ints = np.fromiter(bias.keys(), np.int64, len(bias))
        self.bias: Floats = np.fromiter(bias.values(), np.float32, len(bias))
        self.repetition = params.repetition_penalty
        self.frequency, self.presence = params.frequency_penalty, params.presence_penalty
        self.is_penalised = _is_penalised(params)
        self.penalises_prompt = params.repetition_penalty != 1
        self._num_prompt_tokens = num_prompt_tokens
        self._min_tokens = params.min_tokens
        self._stops: Ints = np.array([*eos_token_ids, *params.stop_token_ids], np.int64)
        self._bad_words = BadWords(params.bad_words) if params.bad_words else None
        self._counts: TokenCounts | None = None

    @property
    def need_tokens(self) -> bool:
        return self._bad_words is not None and self._bad_words.depend_on_output

    def forbidden(self, tokens: Tokens, vocab_size: int) -> Ints:
        """Return [F] tokens ruled out by bad words and min_tokens; none if no token would be left."""
        output = tokens[self._num_prompt_tokens :]
        found = []
        if self._bad_words is not None:
            found.append(self._bad_words.completing(output))
        if len(output) < self._min_tokens:
            found.append(self._stops)
        if not found:
            return _NONE
        forbidden = np.unique(np.concatenate(found))
        if len(self.allowed):
            return _NONE if np.isin(self.allowed, forbidden).all() else forbidden
        return forbidden if len(forbidden) < vocab_size else _NONE

    def penalised(self, tokens: Tokens, drafts: int = 0) -> tuple[Ints, Floats]:
        """Return [D] tokens and [D] their penalties. The last `drafts` of `tokens` may be taken back."""
        if not self.is_penalised:
            return _NONE, _NONE.astype(np.float32)
        known = tokens[: len(tokens) - drafts]
        if self._counts is None:
            self._counts = TokenCounts(known, self._num_prompt_tokens, self.penalises_prompt)
        ids, counts = self._counts.after(known)
        if drafts:
            ids, counts = counts_with(ids, counts, tokens[len(known) :])
        taken = self.frequency * counts + self.presence * (counts > 0)
        return ids, taken.astype(np.float32)


def _is_penalised(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty)
