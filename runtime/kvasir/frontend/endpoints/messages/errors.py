"""Errors in Anthropic's form, for every answer below /v1/messages."""

from typing import Final, Literal

from msgspec import Struct, json

from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.errors import ApiError

PATH: Final = "/v1/messages"

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


ERRORS: Final = {status: each | {"model": MessageErrorAnswer} for status, each in errors(404, body=True).items()}


def has_path(path: str) -> bool:
    return path == PATH or path.startswith(PATH + "/")


def error_body(error: ApiError, request_id: str) -> bytes:
    # The form has no place for the field's name, so the message must have it.
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    default = "invalid_request_error" if error.status < 500 else "api_error"
    described = MessageErrorObject(_TYPES.get(error.status, default), message)
    return json.encode(MessageErrorAnswer("error", described, request_id))
