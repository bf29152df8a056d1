"""FastAPI without what endpoints that declare parameters need; used by app.py and the routes.

Every endpoint here takes the request itself and answers with a response: nothing has to be resolved before it or
closed behind it, and errors are told by one place. FastAPI's own way from the server to such an endpoint and back
costs more than a completion of one token.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]


class PlainRoute(APIRoute):
    """Calls its endpoint with the request, and nothing else."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


def new_router() -> APIRouter:
    """For one module's endpoints."""
    return APIRouter(route_class=PlainRoute)


class PlainApp(FastAPI):
    """Its exception handlers and the middleware that was added are all that stands before its routes: the outermost
    must raise nothing."""

    def add_routes(self, router: APIRouter) -> None:
        """The first that fits a request takes it."""
        self.router.routes.extend(router.routes)

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = ExceptionMiddleware(self.router, self.exception_handlers)
        for middleware, args, kwargs in reversed(self.user_middleware):
            app = middleware(app, *args, **kwargs)
        return app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Starlette.__call__(self, scope, receive, send)
