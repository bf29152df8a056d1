"""What the endpoints answer, as far as clients may rely on it: for the OpenAPI description, and for the routes of
small answers, which encode these very structs.

Generation's answers are written by their routes (a chunk costs one encoding); tests compare them with these.
"""

from typing import Literal

import msgspec


class ErrorObject(msgspec.Struct):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """OpenAI's error object; the same in an event of a stream that fails."""

    error: ErrorObject


# ---------------------------------------------------------------------------------------------- generation


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(msgspec.Struct):
    """An entry per token; null where a token has no log probability, as the first of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By token id, per token of the prompt; null for the first."""


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class CompletionAnswer(msgspec.Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatAnswer(msgspec.Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


# ---------------------------------------------------------------------------------------------- the rest


class TokenizeAnswer(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


class EngineLoad(msgspec.Struct):
    rank: int
    incarnation: str
    usable: bool
    running: int | None
    """None until the engine has reported its load."""
    waiting: int | None
    kv_cache_usage: float | None
    """Share of its KV blocks in use, 0 to 1."""


class LoadAnswer(msgspec.Struct):
    server_load: int
    """Requests that this frontend is generating for."""
    max_live_requests: int
    engines: list[EngineLoad]


class EngineReset(msgspec.Struct):
    rank: int
    incarnation: str


class ResetAnswer(msgspec.Struct):
    engines: list[EngineReset]


class LoadProgress(msgspec.Struct):
    done: int
    """Bytes of the weights."""
    total: int


class EngineHealth(msgspec.Struct):
    rank: int
    incarnation: str
    node: str
    phase: str
    progress: LoadProgress | None
    usable: bool
    step_age: float


class HealthAnswer(msgspec.Struct):
    status: str
    engines: list[EngineHealth]


class ProbeAnswer(msgspec.Struct):
    status: str
    reason: str | msgspec.UnsetType = msgspec.UNSET


class VersionAnswer(msgspec.Struct):
    version: str
