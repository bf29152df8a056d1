"""Converts the sampling fields of a request to an engine's parameters."""

import functools
import logging
import math
import random
import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kvasir.client.request_errors import InvalidRequest
from kvasir.client.text.stop_strings import StopStrings
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.tokenizer import Tokenizer
from kvasir.process.words import count
from kvasir.request.params import (
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORDS,
    MAX_STOP_TOKEN_IDS,
    TEMPERATURE,
    BadParameter,
    SamplingFields,
    SamplingParams,
    check_token_ids,
)

log = logging.getLogger(__name__)

MAX_STOPS: Final = 64
# for all stop strings: their automaton takes a microsecond per character
MAX_STOP_CHARACTERS: Final = 4096
CACHED: Final = 8  # lists of stop strings, and of bad words

_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
# fields with another meaning or a wider range in HTTP requests
_TRANSLATED: Final = frozenset(
    {"temperature", "top_k", "seed", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words"}
    | {"prompt_logprobs"}
)
# passed to the engine unchanged
_SAME: Final = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name in SamplingFields.__struct_fields__ and name not in _TRANSLATED
)


def check_in_vocabulary(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raise InvalidRequest for the field `param` if a token is not in the vocabulary."""
    try:
        check_token_ids(token_ids, vocab_size, param)
    except BadParameter as error:
        raise InvalidRequest(str(error), error.name) from None


class Sampling:
    def __init__(self, model: ModelInfo, tokenizer: Tokenizer, seed: int | None = None) -> None:
        """`seed`: of the generator of seeds for requests without one; None: random."""
        self._seeds: random.Random = secrets.SystemRandom() if seed is None else random.Random(seed)
        self._vocab_size = model.vocab_size
        self._defaults: dict[str, Any] = _DEFAULTS | model.generation_defaults
        for note in model.notes:
            log.warning("%s", note)
        self._tokenizer = tokenizer
        # most requests of an application have the same lists
        self._stops = functools.lru_cache(CACHED)(_stop_strings)
        self._bad_words = functools.lru_cache(CACHED)(self._bad_word_tokens)

    def stops(self, stop: str | list[str]) -> StopStrings | None:
        """Return the automaton, or None. Raises InvalidRequest."""
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        return self._stops(strings) if strings else None

    def params(
        self, asked: SamplingFields, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """Return complete parameters; unset fields get the model's default. Raises InvalidRequest."""
        if asked.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens is {asked.min_tokens}, and at most {count(max_tokens, 'token')} can be generated "
                "(max_tokens, or the rest of the context): lower it",
                "min_tokens",
            )
        defaults = self._defaults
        same = {name: defaults[name] if (own := getattr(asked, name)) is None else own for name in _SAME}
        temperature = defaults["temperature"] if asked.temperature is None else asked.temperature
        if TEMPERATURE.most < temperature < math.inf:  # the effect is the same
            temperature = TEMPERATURE.most
        top_k = defaults["top_k"] if asked.top_k is None else asked.top_k
        params = SamplingParams(
            max_tokens=max_tokens,
            seed=self._seeds.getrandbits(64) - 2**63 if asked.seed is None else asked.seed,
            temperature=temperature,
            top_k=0 if top_k == -1 else min(top_k, self._vocab_size),  # a client's number may exceed 64 bits
            stop_token_ids=_stop_token_ids(asked.stop_token_ids) if asked.stop_token_ids else (),
            logit_bias=_logit_bias(asked.logit_bias) if asked.logit_bias else (),
            allowed_token_ids=tuple(dict.fromkeys(asked.allowed_token_ids or ())),
            bad_words=self._bad_words(tuple(asked.bad_words)),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            **same,
        )
        try:
            params.check(self._vocab_size)
        except BadParameter as error:
            raise InvalidRequest(str(error), error.name) from None
        return params

    def _bad_word_tokens(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return each word's tokens, at the beginning of a text and after a space, as vLLM does."""
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
                raise InvalidRequest(f"bad_words: {word!r} has no token: leave it out", "bad_words")
            sequences.update(dict.fromkeys(tokens))
        return tuple(sequences)


def _stop_token_ids(token_ids: Sequence[int]) -> tuple[int, ...]:
    if len(token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"{len(token_ids)} stop tokens are too many: give at most {MAX_STOP_TOKEN_IDS}", "stop_token_ids"
        )
    return tuple(dict.fromkeys(token_ids))


def _logit_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    result = []
    for name, added in bias.items():
        # as Python writes it, so that no token occurs twice
        if not name.isascii() or not name.isdecimal() or len(name) > 10 or str(int(name)) != name:
            raise InvalidRequest(
                f"logit_bias: {name[:20]!r} is not a token id: give a decimal number", "logit_bias"
            )
        result.append((int(name), added))
    return tuple(result)


def _stop_strings(strings: tuple[str, ...]) -> StopStrings:
    if "" in strings:
        raise InvalidRequest("stop holds an empty string, which would end any text at once: leave it out", "stop")
    if len(strings) > MAX_STOPS or sum(map(len, strings)) > MAX_STOP_CHARACTERS:
        raise InvalidRequest(
            f"stop is too long: give at most {MAX_STOPS} strings, of {MAX_STOP_CHARACTERS} characters together",
            "stop",
        )
    return StopStrings(strings)
