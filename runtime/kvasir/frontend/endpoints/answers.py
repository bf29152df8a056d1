"""Answers of the small endpoints, and the descriptions of errors and streams in the OpenAPI document."""

from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType

from kvasir.frontend.errors import ErrorAnswer


class TokenizeAnswer(Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(Struct):
    prompt: str


class TokenizerInfo(Struct):
    """tokenizer_config.json, whose further fields are the model's own."""

    tokenizer_class: str
    chat_template: str | UnsetType = UNSET


class Model(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    task: Literal["generate", "embed", "classify"]
    """The kind of requests that the model is served for."""


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


class EngineLoadEntry(Struct):
    rank: int
    incarnation: str
    usable: bool
    running: int | None
    """null until the engine has reported its load."""
    waiting: int | None
    kv_cache_usage: float | None
    """Share, 0 to 1."""


class LoadAnswer(Struct):
    server_load: int
    """Requests that this frontend is generating for."""
    max_live_requests: int
    engines: list[EngineLoadEntry]


class EngineReset(Struct):
    rank: int
    incarnation: str


class ResetAnswer(Struct):
    engines: list[EngineReset]


class EngineProfile(Struct):
    rank: int
    incarnation: str
    files: list[str]
    """On the engine's machine; empty after a start."""


class ProfileAnswer(Struct):
    engines: list[EngineProfile]


class LoadProgress(Struct):
    done: int
    """Bytes of the weights."""
    total: int


class EngineHealth(Struct):
    rank: int
    incarnation: str
    phase: str
    progress: LoadProgress | None
    usable: bool
    step_age: float


class HealthAnswer(Struct):
    status: str
    # Missing if an API key is required and the request has none that is accepted.
    engines: list[EngineHealth] | UnsetType = UNSET


class ProbeAnswer(Struct):
    status: str
    reason: str | UnsetType = UNSET


class VersionAnswer(Struct):
    version: str


class IndexAnswer(Struct):
    service: Literal["kvasir"]
    version: str
    api: str
    docs: str | None
    """null with `--disable-fastapi-docs`."""
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


def errors(*statuses: int, body: bool = False) -> Responses:
    """Return the error answers of an endpoint. `body`: also those of every endpoint with a body."""
    described = sorted({*statuses, *(_OF_BODIES if body else ())})
    return {status: {"model": ErrorAnswer, "description": _STATUSES[status]} for status in described}
