"""Fields of the bodies of completions and chats."""

import re
import secrets
from typing import Annotated, Any, ClassVar, Final, cast

from pydantic import Field, model_validator
from starlette.types import Scope

from kvasir.client.input.grammar_source import GrammarSource
from kvasir.client.service_limits import RANK_FIELD
from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation.sampling_body import SamplingBody
from kvasir.frontend.generation.structured_output import (
    CONSTRAINING_FIELDS,
    OutputFields,
    grammar_source,
)
from kvasir.frontend.request_bodies.request_body import BodyPart
from kvasir.request.params import Bounds, SamplingFields

LENGTH_PENALTY: Final = Bounds(-10, 10)

# Fields that beam search does not implement, and their values that change nothing.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "stream": (False,),
    "stop": ([], ""),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (None, 1),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (None,),
    "prompt_logprobs": (None,),
}


def check_beam_search(body: "GenerationRequest") -> None:
    """Raise ApiError for fields that beam search does not take, or that need it."""
    if not body.use_beam_search:
        if body.length_penalty != 1:
            raise bad_field(
                "length_penalty", "length_penalty is for beam search: set use_beam_search, or leave it out"
            )
        return
    for name, neutral in _NEUTRAL.items():
        if getattr(body, name) not in neutral:
            raise bad_field(name, f"{name} is not supported with use_beam_search: leave out one of them")


# OpenAI's limits. A model's generation_config may have a higher temperature.
MAX_CHOICES = 128
MAX_STOP_STRINGS = 4
MAX_TEMPERATURE = 2

# as routers for vLLM send it
RANK_HEADER: Final = "X-data-parallel-rank"
_RANK_NAME: Final = RANK_HEADER.lower().encode()
_RANK: Final = re.compile(rb"[0-9]{1,9}")

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class StreamOptions(BodyPart):
    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """Report the usage so far with every chunk, not only at the end."""


class GenerationRequest(SamplingBody, OutputFields):
    """Fields of both bodies. None: the model's generation_config or the server decides."""

    not_yet: ClassVar = {"kv_transfer_params": ()}

    model: str | None = None
    max_tokens: int | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """Divides the logits. 0 is greedy."""
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    """Choices for each prompt; the one at index i draws from seed + i."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    """Log probabilities name tokens as token_id:ID, which no two of them share."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """Keep this many of the prompt's last tokens; -1: as many as fit."""
    priority: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    cache_salt: Annotated[str, Field(max_length=1024)] = ""
    request_id: str | None = None
    """For the answer's id."""
    data_parallel_rank: Annotated[int, Field(ge=0, lt=10**9)] | None = None
    """Only engines of this rank compute it."""
    use_beam_search: bool = False
    """Find the `n` most likely texts by beam search."""
    length_penalty: Annotated[float, Field(ge=LENGTH_PENALTY.least, le=LENGTH_PENALTY.most)] = 1.0
    """Above 0 prefers long texts in beam search, below 0 short ones."""
    guided_decoding_backend: str | None = None
    """Without effect: there is one engine for grammars."""
    # Labels and settings of OpenAI's accounts: no answer depends on them.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    @property
    def sampling(self) -> SamplingFields:
        # The body has all fields of SamplingFields.
        return cast(SamplingFields, self)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def grammar_source(self) -> GrammarSource | None:
        return None if self.model_fields_set.isdisjoint(CONSTRAINING_FIELDS) else grammar_source(self)

    def check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise bad_field("stream_options", "stream_options is for streams: set stream, or leave it out")
        if self.stream_options is not None and self.continuous_usage and not self.include_usage:
            name = "stream_options.continuous_usage_stats"
            raise bad_field(name, f"{name} needs stream_options.include_usage")
        if self.use_beam_search or self.length_penalty != 1:
            check_beam_search(self)
        if self.use_beam_search and (source := self.grammar_source()) is not None:
            name = source.param
            raise bad_field(name, f"{name} is not supported with use_beam_search: leave out one of them")
        sampling = self.sampling
        if sampling.prompt_logprobs is not None and self.stream:
            raise bad_field("prompt_logprobs", "prompt_logprobs cannot be streamed: leave out one of the two")
        stop = sampling.stop
        if isinstance(stop, list) and len(stop) > MAX_STOP_STRINGS:
            raise bad_field("stop", f"stop: {len(stop)} strings are too many, give at most {MAX_STOP_STRINGS}")
        if self.truncate_prompt_tokens == 0:
            raise bad_field("truncate_prompt_tokens", "truncate_prompt_tokens is 0: keep at least 1 token")
        if self.request_id is not None and not _REQUEST_ID.fullmatch(self.request_id):
            raise bad_field("request_id", "request_id: give 1 to 128 printable ASCII characters without spaces")

    def take_rank(self, scope: Scope) -> None:
        """Take the rank from the header. Raises ApiError."""
        self.data_parallel_rank = header_rank(scope, self.data_parallel_rank)

    def ids(self, prefix: str) -> tuple[str, str]:
        """Return the answer's id, and a unique one."""
        unique = secrets.token_hex(16)
        if self.request_id is None:
            return (f"{prefix}-{unique}",) * 2
        return f"{prefix}-{self.request_id}", f"{prefix}-{self.request_id}-{unique}"

    def kept_prompt_tokens(self, limit: int, max_tokens: int | None) -> int | None:
        """Return how many last tokens of the prompt to keep; None: all. `limit`: the context. Raises ApiError."""
        if self.truncate_prompt_tokens == -1:
            return max(1, limit - (max_tokens or 1))
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens > limit:
            raise bad_field(
                "truncate_prompt_tokens",
                f"truncate_prompt_tokens: {self.truncate_prompt_tokens} is more than the context of {limit} "
                "tokens: give at most that, or -1 for what the context leaves",
            )
        return self.truncate_prompt_tokens


def header_rank(scope: Scope, field: int | None = None) -> int | None:
    """Return the rank of the header or of the body's `field`; None: any. Raises ApiError if they differ."""
    text = None
    for name, value in scope["headers"]:
        if name == _RANK_NAME:
            text = value
            break
    if text is None:
        return field
    if not _RANK.fullmatch(text):
        raise bad_field(RANK_FIELD, f"the header {RANK_HEADER} is not a rank: send a number of 0 or more")
    if field not in (None, int(text)):
        raise bad_field(
            RANK_FIELD, f"{RANK_FIELD} is {field} and the header {RANK_HEADER} is {int(text)}: send one of the two"
        )
    return int(text)
