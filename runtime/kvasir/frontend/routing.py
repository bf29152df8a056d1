"""The table of endpoints: which function answers a method and a path; used by app.py and the routes.

Starlette without its wrapper around each function: every endpoint here takes the request and returns a response,
and one place handles errors.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]


class PlainRoute(Route):
    """Calls its endpoint with the request, and nothing else."""

    def __init__(self, method: str, path: str, endpoint: Endpoint) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.methods = {method}  # middleware.Entrance asks a HEAD as a GET

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


class Routes:
    """One module's endpoints, in their order: the first that fits a request takes it."""

    def __init__(self) -> None:
        self.table: list[PlainRoute] = []

    def get(self, path: str) -> Callable[[Endpoint], Endpoint]:
        return self._route("GET", path)

    def post(self, path: str) -> Callable[[Endpoint], Endpoint]:
        return self._route("POST", path)

    def _route(self, method: str, path: str) -> Callable[[Endpoint], Endpoint]:
        def add(endpoint: Endpoint) -> Endpoint:
            self.table.append(PlainRoute(method, path, endpoint))
            return endpoint

        return add


class PlainApp(Starlette):
    """Its exception handlers and the middleware that was added are all that stands before its routes: the outermost
    must raise nothing."""

    def __init__(self, table: Iterable[PlainRoute]) -> None:
        self.table = tuple(table)
        self.description: dict[str, Any] | None = None
        """The OpenAPI document, once it is asked for."""
        super().__init__(routes=self.table)
        self.router.redirect_slashes = False

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = ExceptionMiddleware(self.router, self.exception_handlers)
        for middleware, args, kwargs in reversed(self.user_middleware):
            app = middleware(app, *args, **kwargs)
        return app
