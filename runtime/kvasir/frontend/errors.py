"""Every error that a client can see, in OpenAI's form. The message has the accepted values, the param names the
field."""

import math
from collections.abc import Mapping
from typing import Final, Literal, TypeVar

from msgspec import Struct, json
from starlette.responses import Response
from starlette.types import Scope

from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, RequestFailed, TooManyRequests

# nginx's status for a client that left before its answer began; only in log and metrics.
CLIENT_CLOSED_REQUEST = 499

Value = TypeVar("Value")


ErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]


class ErrorObject(Struct):
    message: str
    type: ErrorType
    param: str | None
    code: str | None


class ErrorAnswer(Struct):
    """OpenAI's error object, also in a stream that fails."""

    error: ErrorObject


class ApiError(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def type(self) -> ErrorType:
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        return json.encode(ErrorAnswer(ErrorObject(self.message, self.type, self.param, self.code)))

    def response(self) -> Response:
        return Response(self.body(), self.status, headers=self.headers, media_type="application/json")


def bad_field(param: str | None, message: str) -> ApiError:
    return ApiError(400, message, param=param)


def needed(value: Value | None, path: str) -> Value:
    """Return a field of a body that must be given. Raises ApiError."""
    if value is None:
        raise bad_field(path, f"{path} is missing")
    return value


def unfit_model(message: str) -> ApiError:
    """The error of an endpoint for models of another kind."""
    return ApiError(404, message, param="model", code="endpoint_not_supported")


def empty_list(param: str) -> ApiError:
    return ApiError(400, f"{param}: the list is empty: leave it out", param=param, code="empty_array")


def shutting_down() -> ApiError:
    return ApiError(
        503,
        "the server is shutting down and could not finish this request: send it again",
        code="shutting_down",
        headers={"Retry-After": "1"},
    )


def internal_error(request_id: str) -> ApiError:
    # The traceback is in the log under the same request id.
    return ApiError(
        500, f"internal error; see the server's log under request id {request_id}", code="internal_error"
    )


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """Return the error that the client gets. Unknown exceptions become internal errors."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return ApiError(400, str(error), param=error.param, code=error.code)
        case TooManyRequests():
            return ApiError(429, str(error), code="too_many_requests", headers=_retry_after(error.retry_after))
        case EngineUnavailable():
            return ApiError(503, str(error), code="engine_unavailable", headers=_retry_after(error.retry_after))
        case RequestFailed():
            return ApiError(500, str(error), code=error.code)
        case _:
            return internal_error(request_id)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


_MESSAGES: Final = "/v1/messages"

# Anthropic's clients look for the id of their request here.
REQUEST_ID_HEADER: Final = "request-id"

# By HTTP status. Others are errors of the request below 500, else of the server.
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessageErrorObject(Struct):
    type: str
    message: str


class MessageErrorAnswer(Struct):
    """Anthropic's error object, also in a stream that fails."""

    type: Literal["error"]
    error: MessageErrorObject
    request_id: str


def has_path(path: str) -> bool:
    return path == _MESSAGES or path.startswith(_MESSAGES + "/")


def error_body(error: ApiError, request_id: str) -> bytes:
    # The form has no place for the field's name, so the message must have it.
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    default = "invalid_request_error" if error.status < 500 else "api_error"
    described = MessageErrorObject(_TYPES.get(error.status, default), message)
    return json.encode(MessageErrorAnswer("error", described, request_id))


def error_response(error: ApiError, scope: Scope) -> Response:
    if not has_path(scope["path"]):
        return error.response()
    request_id: str = scope["state"]["request_id"]
    headers = error.headers | {REQUEST_ID_HEADER: request_id}
    return Response(error_body(error, request_id), error.status, headers, media_type="application/json")
