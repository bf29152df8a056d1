"""The answer for an error, in the form of the API that its path belongs to: OpenAI's, or Anthropic's."""

from typing import Final, Literal

from msgspec import Struct, json
from starlette.responses import Response
from starlette.types import Scope

from kvasir.frontend.errors import ApiError

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
