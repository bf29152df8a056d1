"""What the endpoints answer, as far as clients may rely on it: for the OpenAPI description, and for the routes of
small answers, which return these very models.

Generation's answers are written by their routes (a chunk costs one encoding); tests compare them with these.
"""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict


class ErrorObject(BaseModel):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """OpenAI's error object; the same in an event of a stream that fails."""

    error: ErrorObject


# ---------------------------------------------------------------------------------------------- generation


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    """Of a chat whose output is parsed."""


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(BaseModel):
    """An entry per token; null where a token has no log probability, as the first of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(BaseModel):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By token id, per token of the prompt; null for the first."""


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    kv_transfer_params: None


class CalledFunction(BaseModel):
    name: str
    arguments: str
    """A JSON object as text; cut off if the answer is."""


class ChatToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    """null if there are only tool calls, or only reasoning."""
    refusal: None
    tool_calls: list[ChatToolCall] | None = None
    function_call: CalledFunction | None = None
    """Instead of `tool_calls`, if the request has `functions`."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same under vLLM's newer name."""


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    kv_transfer_params: None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


# ---------------------------------------------------------------------------------------------- the rest


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(BaseModel):
    prompt: str


class TokenizerInfo(BaseModel):
    """tokenizer_config.json of the model: its further fields are the model's own."""

    model_config = ConfigDict(extra="allow")

    tokenizer_class: str
    chat_template: str | None = None


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class EngineLoad(BaseModel):
    rank: int
    incarnation: str
    usable: bool
    running: int | None
    """None until the engine has reported its load."""
    waiting: int | None
    kv_cache_usage: float | None
    """Share of its KV blocks in use, 0 to 1."""


class LoadAnswer(BaseModel):
    server_load: int
    """Requests that this frontend is generating for."""
    max_live_requests: int
    engines: list[EngineLoad]


class EngineReset(BaseModel):
    rank: int
    incarnation: str


class ResetAnswer(BaseModel):
    engines: list[EngineReset]


class EngineProfile(BaseModel):
    rank: int
    incarnation: str
    files: list[str]
    """Of its workers, on the engine's machine; empty after a start."""


class ProfileAnswer(BaseModel):
    engines: list[EngineProfile]


class LoadProgress(BaseModel):
    done: int
    """Bytes of the weights."""
    total: int


class EngineHealth(BaseModel):
    rank: int
    incarnation: str
    phase: str
    progress: LoadProgress | None
    usable: bool
    step_age: float


class HealthAnswer(BaseModel):
    status: str
    engines: list[EngineHealth] = []
    """Without it: an API key is required, and the request had none that is accepted."""


class ProbeAnswer(BaseModel):
    status: str
    reason: str | None = None


class VersionAnswer(BaseModel):
    version: str


class IndexAnswer(BaseModel):
    service: Literal["kvasir"]
    version: str
    api: str
    """Path of the OpenAI API."""
    docs: str | None
    """None with `--disable-fastapi-docs`."""
    metrics: str
    health: str
    api_key_required: bool


# ---------------------------------------------------------------------------------------------- for the description

_STATUSES: Final = {
    400: "The request is wrong; `param` names the field",
    401: "The API key is missing or wrong",
    403: "Control calls are not allowed on this server, or with this API key",
    404: "There is no such model, or it is not served here",
    408: "The body did not arrive in time",
    409: "It was not done, or not in all engines",
    413: "The body is too large",
    415: "The body is compressed, or its Content-Type is not JSON",
    429: "Too many requests, tokens or bytes of bodies are in flight: try again after `Retry-After` seconds",
    500: "The engine was lost in the middle of the answer, or a defect of the server",
    503: "No engine became ready in time, or the server is stopping: try again after `Retry-After` seconds",
}
_OF_BODIES: Final = (400, 408, 413, 415, 429, 500, 503)

Responses = dict[int | str, dict[str, Any]]

STREAM: Final[Responses] = {
    200: {
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "description": "An event of a stream: a chunk or an error object as JSON, [DONE] at the end.",
                    "properties": {"data": {"type": "string"}},
                    "required": ["data"],
                }
            }
        }
    }
}
"""An endpoint that streams its answer, if the request asks for it."""


def errors(*statuses: int, body: bool = False) -> Responses:
    """The error answers of an endpoint; `body`: those of every endpoint with a body, too."""
    described = sorted({*statuses, *(_OF_BODIES if body else ())})
    return {status: {"model": ErrorAnswer, "description": _STATUSES[status]} for status in described}
