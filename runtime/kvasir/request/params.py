"""Sampling parameters: their types, ranges, defaults and meanings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Final, get_type_hints

import msgspec
from msgspec import Meta

GREEDY_TEMPERATURE: Final = 1e-5  # greedy below, as in vLLM: dividing by less overflows
MAX_STOP_TOKEN_IDS: Final = 64  # an engine searches them for each token
MAX_BAD_WORDS: Final = 256  # the frontend tokenizes each twice on its event loop
MAX_BAD_WORD_CHARACTERS: Final = 128
MAX_BAD_WORD_TOKENS: Final = 1024


class BadParameter(ValueError):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
# msgspec ignores it for SamplingParams: a value out of range must not end the connection.
class Bounds:
    # both ends included
    least: float
    most: float = math.inf
    accepted: str = ""  # in words, if the numbers do not say it

    def __str__(self) -> str:
        if self.accepted:
            return self.accepted
        return f"{self.least:g} or more" if self.most == math.inf else f"{self.least:g} to {self.most:g}"

    def __contains__(self, value: float) -> bool:
        # false for NaN
        return self.least <= value <= self.most

    @property
    def meta(self) -> Meta:
        return Meta(ge=self.least) if self.most == math.inf else Meta(ge=self.least, le=self.most)


MAX_TOKENS: Final = Bounds(1, 2**63 - 1, "1 or more")
SEED: Final = Bounds(-(2**63), 2**63 - 1, "an integer of 64 bits, -2**63 to 2**63 - 1")
TEMPERATURE: Final = Bounds(0, 1e6, "a number that is 0 (greedy) or more, up to 1000000")  # higher ones overflow
TOP_P: Final = Bounds(math.ulp(0), 1, "a number above 0 and at most 1")
TOP_K: Final = Bounds(0, 2**63 - 1, "0 (all tokens) or more, up to 2**63 - 1")
MIN_P: Final = Bounds(0, 1)
PENALTY: Final = Bounds(-2, 2)
REPETITION_PENALTY: Final = Bounds(0.01, 100)  # beyond this range logits overflow
MIN_TOKENS: Final = Bounds(0)
BIAS: Final = Bounds(-100, 100)
TOP_LOGPROBS: Final = Bounds(0, 20)  # OpenAI's limit, and vLLM's default


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """How tokens are chosen and when the request ends.

    The frontend sets every field, also the seed: engines that continue the request draw equal tokens. Fields are
    only appended, with defaults, because they travel on the link.
    """

    max_tokens: Annotated[int, MAX_TOKENS]  # earlier attempts included
    seed: Annotated[int, SEED]  # with the token's position, the source of all random numbers
    temperature: Annotated[float, TEMPERATURE] = 1.0  # divides the logits; 0: greedy
    top_p: Annotated[float, TOP_P] = 1.0  # keep the fewest tokens that reach this probability
    top_k: Annotated[int, TOP_K] = 0  # keep the k most likely tokens; 0: all
    stop_token_ids: tuple[int, ...] = ()  # besides the model's end-of-sequence tokens
    ignore_eos: bool = False
    min_p: Annotated[float, MIN_P] = 0.0  # keep tokens at least this fraction as likely as the first
    presence_penalty: Annotated[float, PENALTY] = 0.0  # subtracted for tokens in the output
    frequency_penalty: Annotated[float, PENALTY] = 0.0  # subtracted per time in the output
    repetition_penalty: Annotated[float, REPETITION_PENALTY] = 1.0  # divides positive logits, multiplies others
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # never completed in the output
    min_tokens: Annotated[int, MIN_TOKENS] = 0  # before any end-of-sequence or stop token
    logprobs: Annotated[int | None, TOP_LOGPROBS] = None  # number of most likely tokens; None: no report
    prompt_logprobs: Annotated[int | None, TOP_LOGPROBS] = None  # from the second token on

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def check(self, vocab_size: int) -> None:
        """Raise BadParameter for the first bad value."""
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:  # true for NaN
                raise BadParameter(name, f"{name} is {value}: give {BOUNDS[name]}")
        if self.min_tokens > self.max_tokens:
            raise BadParameter(
                "min_tokens", f"min_tokens is {self.min_tokens}: give max_tokens, {self.max_tokens}, or less"
            )
        if self.stop_token_ids or self.allowed_token_ids or self.logit_bias or self.bad_words:
            self._check_lists(vocab_size)

    def _check_lists(self, vocab_size: int) -> None:
        self._check_lengths(vocab_size)
        for name, token_ids in self._named_token_ids():
            check_token_ids(token_ids, vocab_size, name)
        for _, added in self.logit_bias:
            if added not in BIAS:
                raise BadParameter("logit_bias", f"logit_bias holds {added}: give {BIAS}")

    def _check_lengths(self, vocab_size: int) -> None:
        for name, most in (
            ("stop_token_ids", MAX_STOP_TOKEN_IDS),
            ("allowed_token_ids", vocab_size),
            ("logit_bias", vocab_size),
            ("bad_words", 2 * MAX_BAD_WORDS),
        ):
            if (count := len(getattr(self, name))) > most:
                raise BadParameter(name, f"{name} has {count} entries: give at most {most}")
        for word in self.bad_words:
            if not 0 < len(word) <= MAX_BAD_WORD_TOKENS:
                raise BadParameter(
                    "bad_words", f"bad_words holds a word of {len(word)} tokens: give 1 to {MAX_BAD_WORD_TOKENS}"
                )

    def _named_token_ids(self) -> Iterator[tuple[str, Sequence[int]]]:
        yield "stop_token_ids", self.stop_token_ids
        yield "allowed_token_ids", self.allowed_token_ids
        yield "logit_bias", [token_id for token_id, _ in self.logit_bias]
        yield "bad_words", list(chain(*self.bad_words))


def _bounds_of(struct: type[msgspec.Struct]) -> Mapping[str, Bounds]:
    hints = get_type_hints(struct, include_extras=True)
    noted = ((name, each) for name, hint in hints.items() for each in getattr(hint, "__metadata__", ()))
    return MappingProxyType({name: each for name, each in noted if isinstance(each, Bounds)})


BOUNDS: Final = _bounds_of(SamplingParams)
# Unpacked, because each request is checked.
_RANGES: Final = tuple((name, bounds.least, bounds.most) for name, bounds in BOUNDS.items())


def check_token_ids(token_ids: Sequence[int], vocab_size: int, name: str) -> None:
    if not token_ids:
        return
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise BadParameter(name, f"{name}: token id {token_id} is out of range (0 to {vocab_size - 1})")


# ------------------------------------------------------------------------------------------------------ HTTP bodies


class SamplingFields(msgspec.Struct, kw_only=True):
    """The sampling parameters as a client sends them, under the names of OpenAI's and vLLM's APIs.

    A field that has the same name in `SamplingParams` has the same meaning, and its text describes both. None: the
    model's generation_config.json decides, or nothing is requested. client/input/sampling.py makes SamplingParams.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    """0 or -1 keeps all tokens."""
    min_p: Annotated[float, MIN_P.meta] | None = None
    presence_penalty: Annotated[float, PENALTY.meta] = 0.0
    frequency_penalty: Annotated[float, PENALTY.meta] = 0.0
    repetition_penalty: Annotated[float, REPETITION_PENALTY.meta] | None = None
    seed: int | None = None
    logit_bias: dict[str, Annotated[float, BIAS.meta]] = msgspec.field(default_factory=dict)
    """Token id, as a decimal number in a string → number to add to its logit."""
    bad_words: list[str] = msgspec.field(default_factory=list)
    """Texts that never appear in the output, at the beginning of a word or in it."""
    allowed_token_ids: Annotated[list[int], Meta(min_length=1)] | None = None
    min_tokens: Annotated[int, MIN_TOKENS.meta] = 0
    """No end-of-sequence token, stop token or stop string before this many tokens."""
    stop: str | list[str] = msgspec.field(default_factory=list)
    include_stop_str_in_output: bool = False
    """Keep the stop string, or the stop token's text, in the output."""
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """False: an added token after another one has no space before it."""
    prompt_logprobs: Annotated[int, TOP_LOGPROBS.meta] | None = None
