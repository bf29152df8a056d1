"""Makes requests of kind POOL from texts, pairs of texts and tokens, and rejects mistakes."""

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import tokenizers

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.pair_template import PairTemplate, pair_template
from kvasir.client.input.prompted import Prompted
from kvasir.client.input.sampling import check_in_vocabulary
from kvasir.client.request_errors import InvalidRequest
from kvasir.client.service_limits import ServiceLimits
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.pooling.pooling_info import PoolingInfo
from kvasir.hub.tokenizer import Tokenizer
from kvasir.process.words import count
from kvasir.request.params import SamplingParams
from kvasir.request.pool_params import PoolParams
from kvasir.request.request_core import RequestCore, RequestKind
from kvasir.request.tokens import token_array

# A text, a pair of texts, or tokens.
PoolingText = str | tuple[str, str] | Sequence[int]
# Tokenizers of encoders leave out spaces, which belong to no token.
MAX_TOKEN_CHARACTERS: Final = 64
# The engine samples nothing, but counts the end of the request by them.
_NO_SAMPLING: Final = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


@dataclass(frozen=True)
class TextForm:
    """How texts become tokens."""

    add_special_tokens: bool = True
    keep: int | None = None  # tokens, with the special ones; None: longer inputs are rejected
    keeps_end: bool = False  # instead of the beginning
    before: str = ""  # the text of a prompt, before each input

    def check(self, limit: int) -> "TextForm":
        """Return the form with a length for keep -1. Raises InvalidRequest."""
        name = "truncate_prompt_tokens"
        if self.keep is None or 1 <= self.keep <= limit:
            return self
        if self.keep == -1:
            return TextForm(self.add_special_tokens, limit, self.keeps_end, self.before)
        raise InvalidRequest(
            f"{name} is {self.keep}: give 1 to {limit}, the tokens that this model takes, or -1 for as many as "
            "it takes",
            name,
        )


@dataclass(frozen=True)
class PoolingTokens:
    token_ids: list[int]
    second_text: int | None = None  # the place where token types change


@dataclass(frozen=True)
class _Text:
    text: str | tuple[str, str]
    document: tuple[int, int] | None = None  # the characters that may be left out; None: all


class PoolingInput:
    def __init__(
        self,
        model: ModelInfo,
        pooling: PoolingInfo,
        tokenizer: Tokenizer,
        template: PairTemplate | None,
        limits: ServiceLimits,
        check_rank: Callable[[int], None],
    ) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would take the engine's cores
        self.info = pooling
        self._vocab_size = model.vocab_size
        self._width = pooling.dense[-1].outputs if pooling.dense else model.width
        self._tokenizer = tokenizer
        self._template = template
        self._limits = limits
        self._check_rank = check_rank

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt of the model's files. Raises InvalidRequest for an unknown name."""
        if name is None:
            return ""
        if name not in self.info.prompts:
            known = ", ".join(sorted(self.info.prompts)) or "none"
            raise InvalidRequest(f"prompt_name: the model has no prompt {name!r}; it has {known}", "prompt_name")
        return self.info.prompts[name]

    def num_characters(self, inputs: Sequence[PoolingText], form: TextForm) -> int:
        """Return about how many characters `encode` reads, with those of prompts and templates."""
        return sum(
            sum(map(len, each)) + (0 if self._template is None else self._template.num_characters)
            if isinstance(each, tuple)
            else len(each)
            for each in inputs
        ) + len(form.before) * len(inputs)

    def encode(self, inputs: Sequence[PoolingText], form: TextForm, param: str) -> list[PoolingTokens]:
        """Return the tokens of each input. Raises InvalidRequest. Takes milliseconds for long texts."""
        form = form.check(self._limits.max_model_len)
        texts = [self._text(each, form, param) for each in inputs if not _is_tokens(each)]
        written = [each.text for each in texts]
        encodings = iter(
            self._tokenizer.backend.encode_batch(written, add_special_tokens=form.add_special_tokens)
            if written
            else ()
        )
        parts = iter(texts)
        tokens = []
        for each in inputs:
            if _is_tokens(each):
                tokens.append(self._given(each, form, param))
            else:
                tokens.append(_cut(next(encodings), form, next(parts).document))
        for one in tokens:
            self._check_length(len(one.token_ids), param)
        return tokens

    def prepare(
        self,
        tokens: PoolingTokens,
        params: PoolParams,
        *,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> Prompted:
        self._limits.check_priority(priority)
        if data_parallel_rank is not None:
            self._check_rank(data_parallel_rank)
        pooling = PoolParams(params.dimensions, params.normalize, params.activate, tokens.second_text)
        core = RequestCore(_NO_SAMPLING, priority, kind=RequestKind.POOL, pooling=pooling)
        return Prompted(token_array(tokens.token_ids), core, data_parallel_rank=data_parallel_rank)

    def scores_by_token(self, scores: "array[float]", token_ids: Sequence[int]) -> "list[array[float]]":
        """Return the scores of the labels for each token, or for each step, of a model that scores tokens."""
        width, tag = len(self.info.labels), self.info.step_tag
        return [
            scores[place * width : (place + 1) * width]
            for place, token_id in enumerate(token_ids)
            if tag is None or token_id == tag
        ]

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise InvalidRequest for a length that the model's vectors cannot be cut to."""
        if dimensions is None:
            return
        cuts, most = self.info.cuts, self._width
        if cuts is None:
            raise InvalidRequest(
                "dimensions: this model's vectors were not made to be cut (config.json has neither is_matryoshka "
                "nor matryoshka_dimensions): leave it out; if they were, start the server with "
                """--hf-overrides '{"is_matryoshka": true}'""",
                "dimensions",
            )
        if cuts and dimensions not in cuts:
            raise InvalidRequest(
                f"dimensions is {dimensions}: this model has {', '.join(map(str, cuts))}", "dimensions"
            )
        if dimensions < 1 or (most is not None and dimensions > most):
            raise InvalidRequest(f"dimensions is {dimensions}: give 1 to {most}", "dimensions")

    def _text(self, text: PoolingText, form: TextForm, param: str) -> _Text:
        if isinstance(text, str):
            return _Text(self._cased(form.before + self._bounded(text, form, param)))
        assert isinstance(text, tuple)
        first, second = (self._bounded(each, form, param) for each in map(str, text))
        if self._template is not None:
            return _Text(*self._template.joined(form.before + first, second))
        return _Text((self._cased(form.before + first), self._cased(second)))

    def _bounded(self, text: str, form: TextForm, param: str) -> str:
        """Return the text, or as much of it as can have an effect: megabytes take long. Raises InvalidRequest."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                "the text holds half of a surrogate pair (\\ud800 to \\udfff): send complete characters", param
            ) from None
        limit = self._limits.max_model_len
        characters = limit * max(self._tokenizer.longest_token, MAX_TOKEN_CHARACTERS)
        if len(text) <= characters:
            return text
        if form.keep is not None:
            return text[-characters:] if form.keeps_end else text[:characters]
        raise InvalidRequest(
            f"this model's maximum context length is {limit} tokens, {characters} characters at the very most, and "
            f"an input has {len(text)} characters. Shorten it",
            param,
            "context_length_exceeded",
        )

    def _cased(self, text: str) -> str:
        return text.lower() if self.info.lowercase else text

    def _given(self, token_ids: PoolingText, form: TextForm, param: str) -> PoolingTokens:
        ids = [each for each in token_ids if isinstance(each, int)]
        check_in_vocabulary(ids, self._vocab_size, param)
        if form.keep is not None:
            ids = ids[-form.keep :] if form.keeps_end else ids[: form.keep]
        return PoolingTokens(ids)

    def _check_length(self, length: int, param: str) -> None:
        limit = self._limits.max_model_len
        if length == 0:
            raise InvalidRequest("an input is empty: it needs at least one token", param)
        if length > limit:
            # litellm detects an overflow by these words
            raise InvalidRequest(
                f"this model's maximum context length is {limit} tokens, and an input has "
                f"{count(length, 'token')}. Shorten it, or send truncate_prompt_tokens: -1 to use its beginning",
                param,
                "context_length_exceeded",
            )


def pooling_input(
    model: ModelInfo,
    tokenizer: Tokenizer,
    chat_templates: ChatTemplates,
    limits: ServiceLimits,
    check_rank: Callable[[int], None],
) -> PoolingInput | None:
    """Return None for a model that generates."""
    pooling = model.pooling
    if pooling is None:
        return None
    template = pair_template(chat_templates, pooling)
    return PoolingInput(model, pooling, tokenizer, template, limits, check_rank)


def _is_tokens(text: PoolingText) -> bool:
    return not isinstance(text, str) and not (text and isinstance(text[0], str))


def _cut(encoding: tokenizers.Encoding, form: TextForm, document: tuple[int, int] | None) -> PoolingTokens:
    """Return the tokens; those that are too many are left out next to the special tokens, or of the document."""
    ids, types = encoding.ids, encoding.type_ids
    if form.keep is not None and len(ids) > form.keep:
        special = encoding.special_tokens_mask
        places = [place for place, is_special in enumerate(special) if not is_special]
        if document is not None:
            start, end = document
            offsets = encoding.offsets
            places = [place for place in places if start <= offsets[place][0] and offsets[place][1] <= end]
        excess = len(ids) - form.keep
        if document is not None and excess > len(places):
            rest = len(ids) - len(places)
            raise InvalidRequest(
                f"truncate_prompt_tokens is {form.keep}: the query in its template has {rest} tokens, and only "
                "documents are truncated",
                "truncate_prompt_tokens",
            )
        left_out = set(places[:excess] if form.keeps_end else places[len(places) - min(excess, len(places)) :])
        kept = [place for place in range(len(ids)) if place not in left_out][: form.keep]
        ids, types = [ids[place] for place in kept], [types[place] for place in kept]
    return PoolingTokens(ids, types.index(1) if 1 in types else None)
