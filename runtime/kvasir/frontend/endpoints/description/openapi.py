"""/openapi.json: every endpoint with the bodies it takes and the answers it gives.

The routes define the paths and their summaries; the table below and schemas.py define bodies and answers.
"""

import inspect
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kvasir import __version__
from kvasir.frontend.endpoints import answers
from kvasir.frontend.endpoints.chat.request import CHAT
from kvasir.frontend.endpoints.completions.request import COMPLETION
from kvasir.frontend.endpoints.description import schemas
from kvasir.frontend.endpoints.fields import Schema
from kvasir.frontend.endpoints.tokens.request import DETOKENIZE, TOKENIZE
from kvasir.frontend.http.middleware import OPEN
from kvasir.frontend.routing import PlainApp, PlainRoute
from kvasir.frontend.telemetry.metrics import CONTENT_TYPE
from kvasir_contract.endpoints import LIVE_PATH, READY_PATH

STATUSES: Final = {
    400: "The request is wrong; `param` names the field",
    401: "The API key is missing or wrong",
    404: "There is no such model, or it is not served here",
    408: "The body did not arrive in time",
    409: "It was not done, or not in all engines",
    413: "The body is too large",
    415: "The body is compressed",
    429: "Too many requests, tokens or bytes of bodies are in flight: try again after `Retry-After` seconds",
    500: "The engine was lost in the middle of the answer, or a defect of the server",
    503: "No engine is ready, or the server is stopping: try again after `Retry-After` seconds",
}
_WITH_BODY: Final = (400, 408, 413, 415, 429, 500, 503)

EVENT: Final = {
    "type": "object",
    "description": "An event of a stream: a chunk or an error object as JSON, [DONE] at the end.",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}


@dataclass(frozen=True)
class Endpoint:
    """What a route does not say of itself."""

    answer: type[msgspec.Struct] | None = None
    """Of status 200; None: a text of this media type."""
    media_type: str = "application/json"
    body: Schema[Any] | None = None
    streams: bool = False
    errors: tuple[int, ...] = ()
    unhealthy: bool = False
    """503 has the answer of 200."""


ENDPOINTS: Final = {
    ("post", "/v1/completions"): Endpoint(
        answers.CompletionAnswer, body=COMPLETION, streams=True, errors=(*_WITH_BODY, 404)
    ),
    ("post", "/v1/chat/completions"): Endpoint(
        answers.ChatAnswer, body=CHAT, streams=True, errors=(*_WITH_BODY, 404)
    ),
    ("post", "/tokenize"): Endpoint(answers.TokenizeAnswer, body=TOKENIZE, errors=(*_WITH_BODY, 404)),
    ("post", "/detokenize"): Endpoint(answers.DetokenizeAnswer, body=DETOKENIZE, errors=(*_WITH_BODY, 404)),
    ("get", "/v1/models"): Endpoint(answers.ModelList),
    ("get", "/v1/models/{name}"): Endpoint(answers.Model, errors=(404,)),
    ("get", "/load"): Endpoint(answers.LoadAnswer),
    ("post", "/reset_prefix_cache"): Endpoint(answers.ResetAnswer, errors=(400, 409, 503)),
    ("get", "/health"): Endpoint(answers.HealthAnswer, unhealthy=True),
    ("get", LIVE_PATH): Endpoint(answers.ProbeAnswer),
    ("get", READY_PATH): Endpoint(answers.ProbeAnswer, unhealthy=True),
    ("get", "/ping"): Endpoint(answers.HealthAnswer, unhealthy=True),
    ("post", "/ping"): Endpoint(answers.HealthAnswer, unhealthy=True),
    ("get", "/metrics"): Endpoint(media_type=CONTENT_TYPE),
    ("get", "/version"): Endpoint(answers.VersionAnswer),
}
"""By method and path."""
DESCRIBING: Final = frozenset({"/openapi.json", "/docs"})
"""Not in it themselves."""


def describe(app: PlainApp, with_keys: bool) -> dict[str, Any]:
    """The OpenAPI document; made once, it takes a while."""
    if app.description is None:
        app.description = _describe_all(app, with_keys)
    return app.description


def _describe_all(app: PlainApp, with_keys: bool) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in app.table:
        path, method = route.path_format, route.method.lower()
        if path not in DESCRIBING:
            needs_key = with_keys and path not in OPEN
            paths.setdefault(path, {})[method] = _operation(route, ENDPOINTS[method, path], needs_key)
    components: dict[str, Any] = {"schemas": _components()}
    if with_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    info = {"title": "Kvasir", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _operation(route: PlainRoute, endpoint: Endpoint, needs_key: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.name.replace("_", " ").capitalize(),
        "description": inspect.getdoc(route.endpoint),
        "operationId": f"{route.name}_{route.method.lower()}",
    }
    if needs_key:
        operation["security"] = [{"key": []}]
    if endpoint.body is not None:
        body = {"application/json": {"schema": _reference(endpoint.body.struct)}}
        operation["requestBody"] = {"required": True, "content": body}
    if "{name}" in route.path_format:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    schema: dict[str, Any] = {"type": "string"} if endpoint.answer is None else _reference(endpoint.answer)
    content: dict[str, Any] = {endpoint.media_type: {"schema": schema}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": EVENT}
    responses: dict[str, Any] = {"200": {"description": "Done", "content": content}}
    if endpoint.unhealthy:
        responses["503"] = {"description": "Not now", "content": content}
    error = {"application/json": {"schema": _reference(answers.ErrorAnswer)}}
    for status in sorted((*endpoint.errors, 401) if needs_key else endpoint.errors):
        responses[str(status)] = {"description": STATUSES[status], "content": error}
    operation["responses"] = responses
    return operation


def _components() -> dict[str, Any]:
    """Return the schema of every body and answer, and of their parts."""
    bodies = [endpoint.body for endpoint in ENDPOINTS.values() if endpoint.body is not None]
    answered = [endpoint.answer for endpoint in ENDPOINTS.values() if endpoint.answer is not None]
    return schemas.components(bodies, [*answered, answers.ErrorAnswer])


def _reference(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": schemas.REFERENCE.format(name=struct.__name__)}
