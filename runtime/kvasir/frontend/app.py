"""The ASGI application: routes, their errors in OpenAI's body, and what surrounds each request.

Bodies are read, checked and written by the routes themselves (msgspec and orjson): errors keep OpenAI's form, and a
chunk of a stream costs one encoding.
"""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kvasir import __version__
from kvasir.client.errors import EngineUnavailable, InvalidRequest, RequestFailed, TooManyRequests
from kvasir.frontend.errors import ApiError, as_api_error
from kvasir.frontend.middleware import Entrance
from kvasir.frontend.routes import chat, completions, models, ops
from kvasir.frontend.service import Service

CLIENT_CLOSED_REQUEST = 499
"""Nobody reads it (the name is nginx's); the access log of a proxy may."""


def create_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="Kvasir",
        version=__version__,
        docs_url=None,  # it would load its scripts from a CDN
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for routes in (completions, chat, models, ops):
        app.include_router(routes.router)
    for kind in (ApiError, InvalidRequest, TooManyRequests, EngineUnavailable, RequestFailed):
        app.add_exception_handler(kind, _known_error)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_middleware(Entrance, service=service)
    return app


async def _known_error(request: Request, error: Exception) -> Response:
    return as_api_error(error, request.state.request_id).response()


async def _routing_error(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return ApiError(404, f"there is no {what} here", code="unknown_url").response()
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{what} is not allowed: use {allowed}"
        return ApiError(405, message, code="method_not_allowed", headers=error.headers).response()
    return ApiError(error.status_code, error.detail, headers=error.headers).response()


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
