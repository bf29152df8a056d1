"""Errors in Anthropic's form, for every answer below /v1/messages."""

from typing import Final

import orjson

from kvasir.frontend.errors import ApiError

PATH: Final = "/v1/messages"

REQUEST_ID_HEADER: Final = "request-id"
"""Anthropic's clients look for the id of their request here."""

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""By HTTP status; others are errors of the request below 500, and of the server from there on."""


def has_path(path: str) -> bool:
    """Return whether a path belongs to Anthropic's API."""
    return path == PATH or path.startswith(PATH + "/")


def error_body(error: ApiError, request_id: str) -> bytes:
    """The form has no place for the field's name, so the message must hold it."""
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    default = "invalid_request_error" if error.status < 500 else "api_error"
    told = {"type": _TYPES.get(error.status, default), "message": message}
    return orjson.dumps({"type": "error", "error": told, "request_id": request_id})
