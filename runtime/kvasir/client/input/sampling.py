"""From the sampling fields of a request to the parameters that an engine gets, for one model; every mistake is an
InvalidRequest with the field's name. Used by the input processor.
"""

import functools
import math
import secrets
from collections.abc import Sequence
from typing import Final

from kvasir.client.input.sampling_fields import SamplingFields
from kvasir.client.request_errors import InvalidRequest
from kvasir.client.text.stop_strings import StopStrings
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.tokenizer import Tokenizer
from kvasir.params import SamplingParams

MAX_STOP_TOKEN_IDS: Final = 64
"""An engine looks each token up among them."""
MAX_STOPS: Final = 64
MAX_STOP_CHARACTERS: Final = 4096
"""In all stop strings together: their automaton takes a microsecond for each."""
MAX_BAD_WORDS: Final = 256
"""They are tokenized on the event loop, twice each."""
MAX_BAD_WORD_CHARACTERS: Final = 128
CACHED: Final = 8
"""Lists of stop strings and of bad words that are kept ready."""
HOTTEST: Final = 1e6
"""Temperatures above are as good as this one, all tokens being equally likely, and would overflow."""

_DEFAULTS: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Of the fields that a model's generation_config.json may set, where it does not."""


def check_in_vocabulary(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"{token_id} is no token of this model: ids go from 0 to {vocab_size - 1}", param)


class Sampling:
    """Knows the model's defaults, its vocabulary and how it writes a bad word."""

    def __init__(self, model: ModelInfo, tokenizer: Tokenizer) -> None:
        self._vocab_size = model.vocab_size
        self._defaults = _DEFAULTS | model.generation_defaults
        self._tokenizer = tokenizer
        # All prompts of a request have the same ones, and most requests of an application.
        self._stops = functools.lru_cache(CACHED)(_stop_strings)
        self._bad_words = functools.lru_cache(CACHED)(self._bad_word_tokens)

    def stops(self, stop: str | list[str]) -> StopStrings | None:
        """What ends a text; None where nothing does. Raises InvalidRequest."""
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        return self._stops(strings) if strings else None

    def params(
        self, asked: SamplingFields, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """Complete: what is not asked for is the model's own default, the seed random. Raises InvalidRequest."""
        if asked.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens is {asked.min_tokens}, and at most {max_tokens} tokens are generated (max_tokens, or "
                "what is left of the context): lower it",
                "min_tokens",
            )
        return SamplingParams(
            max_tokens=max_tokens,
            seed=_checked_seed(asked.seed),
            temperature=_checked_temperature(self._or_default("temperature", asked.temperature)),
            top_p=_checked_top_p(self._or_default("top_p", asked.top_p)),
            # More than the vocabulary keeps all, and need not fit into an engine's 64 bits.
            top_k=min(_checked_top_k(int(self._or_default("top_k", asked.top_k))), self._vocab_size),
            stop_token_ids=self._stop_token_ids(asked.stop_token_ids),
            ignore_eos=asked.ignore_eos,
            min_p=float(self._or_default("min_p", asked.min_p)),
            presence_penalty=float(asked.presence_penalty),
            frequency_penalty=float(asked.frequency_penalty),
            repetition_penalty=float(self._or_default("repetition_penalty", asked.repetition_penalty)),
            logit_bias=self._logit_bias(asked.logit_bias),
            allowed_token_ids=self._token_ids(asked.allowed_token_ids or (), "allowed_token_ids"),
            bad_words=self._bad_words(tuple(asked.bad_words)),
            min_tokens=asked.min_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _or_default(self, name: str, asked: float | None) -> float:
        return self._defaults[name] if asked is None else asked

    def _token_ids(self, token_ids: Sequence[int], param: str) -> tuple[int, ...]:
        if not token_ids:
            return ()
        check_in_vocabulary(token_ids, self._vocab_size, param)
        return tuple(dict.fromkeys(token_ids))

    def _stop_token_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        if len(token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"{len(token_ids)} stop tokens are too many: give at most {MAX_STOP_TOKEN_IDS}", "stop_token_ids"
            )
        return self._token_ids(token_ids, "stop_token_ids")

    def _logit_bias(self, bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
        result = []
        for name, added in bias.items():
            # As Python writes it: one token must not come twice.
            if not name.isascii() or not name.isdecimal() or len(name) > 10 or str(int(name)) != name:
                raise InvalidRequest(
                    f"logit_bias: {name[:20]!r} is no token id: give a decimal number", "logit_bias"
                )
            result.append((int(name), float(added)))
        if result:
            check_in_vocabulary([token_id for token_id, _ in result], self._vocab_size, "logit_bias")
        return tuple(result)

    def _bad_word_tokens(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word as the beginning of a text and, where they differ, after a space (as in vLLM)."""
        if len(words) > MAX_BAD_WORDS or any(len(word) > MAX_BAD_WORD_CHARACTERS for word in words):
            raise InvalidRequest(
                f"bad_words is too long: give at most {MAX_BAD_WORDS} words, of {MAX_BAD_WORD_CHARACTERS} "
                "characters each",
                "bad_words",
            )
        sequences: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip()
            tokens = [tuple(self._tokenizer.encode(text, False)) for text in (bare, " " + bare)]
            if not bare or () in tokens:
                raise InvalidRequest(f"bad_words: {word!r} is no word: give texts that are not empty", "bad_words")
            sequences.update(dict.fromkeys(tokens))
        return tuple(sequences)


def _checked_temperature(value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"temperature is {value}: give a number that is 0 (greedy) or more", "temperature")
    return min(float(value), HOTTEST)


def _checked_top_p(value: float) -> float:
    if not 0 < value <= 1:
        raise InvalidRequest(f"top_p is {value}: give a number above 0 and at most 1", "top_p")
    return float(value)


def _checked_top_k(value: int) -> int:
    if value < -1:
        raise InvalidRequest(f"top_k is {value}: give 1 or more, or 0 or -1 to keep all tokens", "top_k")
    return max(value, 0)


def _checked_seed(value: int | None) -> int:
    if value is None:
        return secrets.randbits(64) - 2**63
    if not -(2**63) <= value < 2**63:
        raise InvalidRequest(f"seed is {value}: give an integer of 64 bits, -2**63 to 2**63 - 1", "seed")
    return value


def _stop_strings(strings: tuple[str, ...]) -> StopStrings:
    if "" in strings:
        raise InvalidRequest("stop holds an empty string, which would end any text at once: leave it out", "stop")
    if len(strings) > MAX_STOPS or sum(map(len, strings)) > MAX_STOP_CHARACTERS:
        raise InvalidRequest(
            f"stop is too long: give at most {MAX_STOPS} strings, of {MAX_STOP_CHARACTERS} characters together",
            "stop",
        )
    return StopStrings(strings)
