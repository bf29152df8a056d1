"""The answer for an error, in the form of the API that its path belongs to."""

from starlette.responses import Response
from starlette.types import Scope

from kvasir.frontend.endpoints.messages.errors import REQUEST_ID_HEADER, error_body, has_path
from kvasir.frontend.errors import ApiError


def error_response(error: ApiError, scope: Scope) -> Response:
    if not has_path(scope["path"]):
        return error.response()
    request_id: str = scope["state"]["request_id"]
    headers = error.headers | {REQUEST_ID_HEADER: request_id}
    return Response(error_body(error, request_id), error.status, headers, media_type="application/json")
