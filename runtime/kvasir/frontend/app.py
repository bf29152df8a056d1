"""The ASGI application: routes, their errors, and the layers around each request."""

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, RequestFailed, TooManyRequests
from kvasir.config.options import ConfigError
from kvasir.frontend.endpoints import control, index, invocations, lora_adapters, missing, models, ops
from kvasir.frontend.endpoints.chat import route as chat
from kvasir.frontend.endpoints.completions import route as completions
from kvasir.frontend.endpoints.description import route as description
from kvasir.frontend.endpoints.messages import route as messages
from kvasir.frontend.endpoints.pooling import cohere_embed, embeddings, pair_scores
from kvasir.frontend.endpoints.responses import route as responses
from kvasir.frontend.endpoints.tokens import route as tokens
from kvasir.frontend.errors import CLIENT_CLOSED_REQUEST, ApiError, as_api_error, error_response
from kvasir.frontend.http.user_middleware import add_middleware
from kvasir.frontend.middleware import AccessMiddleware, RecordMiddleware, RootPath
from kvasir.frontend.routing import LeanApp
from kvasir.frontend.service import Service, service_of
from kvasir.frontend.telemetry.request_log import record_of
from kvasir.version import __version__


def create_app(service: Service) -> LeanApp:
    modules = [completions, chat, invocations, responses, messages, tokens, models, lora_adapters]
    modules += [control, ops, index]
    modules += [embeddings, cohere_embed, pair_scores]
    if service.has_docs:
        modules.append(description)
    app = LeanApp(
        title="Kvasir",
        version=__version__,
        openapi_url=None,  # endpoints/description has both pages: they load nothing from other hosts
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # frontend/telemetry/ has Kvasir's own
        routes=[route for module in modules for route in module.router.routes],
        servers=[{"url": service.root_path}] if service.root_path else None,
    )
    app.state.service = service
    for kind in (ApiError, InvalidRequest, TooManyRequests, EngineUnavailable, RequestFailed):
        app.add_exception_handler(kind, _known_error)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_middleware(AccessMiddleware, service=service)
    if service.cors is not None:
        app.add_middleware(CORSMiddleware, **service.cors)
    add_middleware(app, service.middleware)
    app.add_middleware(RecordMiddleware, service=service)  # added last, it is outside
    if service.root_path:
        app.add_middleware(RootPath, root_path=service.root_path)
    try:
        app.middleware_stack = app.build_middleware_stack()
    except Exception as error:
        if not service.middleware:
            raise
        raise ConfigError(f"--middleware: a class cannot be used ({type(error).__name__}: {error})") from error
    return app


async def _known_error(request: Request, error: Exception) -> Response:
    return _respond(request, as_api_error(error, record_of(request).request_id))


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404 and (reason := missing.reason_of(request.scope["path"])) is not None:
        # Not 501: clients repeat requests with a status of 500 or more.
        message = f"{request.scope['path']} is an endpoint of vLLM that Kvasir does not have: {reason}"
        return _respond(request, ApiError(404, message, code="endpoint_not_supported"))
    if error.status_code == 404:
        message = f"there is no {what} here"
        if service_of(request).has_docs:
            message += ": GET /openapi.json (or /docs, for people) lists what there is"
        return _respond(request, ApiError(404, message, code="unknown_url"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        if allowed == "GET":
            allowed = "GET, HEAD"
        message = f"{what} is not allowed: use {allowed}"
        return _respond(request, ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed}))
    return _respond(request, ApiError(error.status_code, error.detail, headers=error.headers))


def _respond(request: Request, error: ApiError) -> Response:
    record_of(request).error = error.message
    return error_response(error, request.scope)


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
