"""FastAPI's application and routes, without unused steps per request.

FastAPI makes the OpenAPI document from the endpoints' signatures. A `LeanRoute` calls its endpoint directly: a
dependency is a function of the request, a body is validated once, and the answer is a msgspec struct.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, get_args, get_origin

from fastapi import APIRouter, FastAPI
from fastapi.datastructures import DefaultPlaceholder
from fastapi.params import Depends
from fastapi.routing import APIRoute
from msgspec import Struct, json
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kvasir.frontend.request_bodies.body import read_json
from kvasir.frontend.request_bodies.request_body import RequestBody, parse
from kvasir.frontend.service import service_of

SCHEMA_REFERENCE: Final = "#/components/schemas/{name}"

Argument = Callable[[Request], Any]


class LeanRoute(APIRoute):
    """Calls an endpoint, a coroutine function, and sends its response or struct."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **fastapis: Any) -> None:
        if fastapis.get("dependencies"):
            raise TypeError(f"{path}: `dependencies` would not be called: write them as parameters of the endpoint")
        self.structs: set[type[Struct]] = set()
        """Answers in the document."""
        answer = fastapis["response_model"]
        if isinstance(answer, DefaultPlaceholder):
            answer = inspect.signature(endpoint, eval_str=True).return_annotation
        if _structs_of(answer):
            success = {"model": answer} | fastapis["responses"].get(200, {})
            fastapis |= {"response_model": None, "responses": fastapis["responses"] | {200: success}}
        fastapis["responses"] = {key: self._describe(each) for key, each in fastapis["responses"].items()}
        super().__init__(path, endpoint, **fastapis)
        assert self.methods is not None
        (self.method,) = self.methods  # middleware.RecordMiddleware changes HEAD to GET
        self.app = _asgi_app(endpoint, self.path_format)

    def _describe(self, response: dict[str, Any]) -> dict[str, Any]:
        # FastAPI cannot describe structs, so it gets references
        structs = _structs_of(response.get("model"))
        if not structs:
            return response
        self.structs |= set(structs)
        schemas = [{"$ref": SCHEMA_REFERENCE.format(name=each.__name__)} for each in structs]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        content = {"application/json": {"schema": schema}, **response.get("content", {})}
        return {**{key: each for key, each in response.items() if key != "model"}, "content": content}


def new_router() -> APIRouter:
    return APIRouter(route_class=LeanRoute, generate_unique_id_function=_operation_id)


def json_response(answer: Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.encode(answer), status, headers, media_type="application/json")


def _structs_of(model: Any) -> list[type[Struct]]:
    return [each for each in get_args(model) or (model,) if isinstance(each, type) and issubclass(each, Struct)]


def _operation_id(route: APIRoute) -> str:
    assert route.methods is not None
    return f"{route.name}_{next(iter(route.methods)).lower()}"


class LeanApp(FastAPI):
    """FastAPI with only exception handlers and the added middleware."""

    def build_middleware_stack(self) -> ASGIApp:
        # without Starlette's outermost handler: the outermost middleware must not raise
        app: ASGIApp = ExceptionMiddleware(self.router, self.exception_handlers)
        for middleware, args, kwargs in reversed(self.user_middleware):
            app = middleware(app, *args, **kwargs)
        return app


def _asgi_app(endpoint: Callable[..., Awaitable[Response | Struct]], path: str) -> ASGIApp:
    arguments, body = _arguments(endpoint, path)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        values = {name: value_of(request) for name, value_of in arguments}
        if body is not None:
            service = service_of(request)
            given = await read_json(request, service.max_request_bytes)
            values[body[0]] = parse(body[1], given, strict=service.strict_fields)
        answer = await endpoint(**values)
        if isinstance(answer, Struct):
            answer = json_response(answer)
        await answer(scope, receive, send)

    return app


def _arguments(
    endpoint: Callable[..., Any], path: str
) -> tuple[list[tuple[str, Argument]], tuple[str, type[RequestBody]] | None]:
    """Return an endpoint's parameters, and its body's name and model. Raises TypeError for other kinds."""
    arguments: list[tuple[str, Argument]] = []
    body = None
    for name, parameter in inspect.signature(endpoint, eval_str=True).parameters.items():
        kind = parameter.annotation
        dependencies = [each for each in get_args(kind)[1:] if isinstance(each, Depends)]
        if get_origin(kind) is Annotated and dependencies:
            assert dependencies[0].dependency is not None
            arguments.append((name, dependencies[0].dependency))
        elif kind is Request:
            arguments.append((name, _request))
        elif isinstance(kind, type) and issubclass(kind, RequestBody):
            body = name, kind
        elif f"{{{name}}}" in path:
            arguments.append((name, _path_parameter(name)))
        else:
            raise TypeError(
                f"{endpoint.__name__}: {name} is neither a dependency, a body, the request nor in {path}"
            )
    return arguments, body


def _request(request: Request) -> Request:
    return request


def _path_parameter(name: str) -> Argument:
    return lambda request: request.path_params[name]
