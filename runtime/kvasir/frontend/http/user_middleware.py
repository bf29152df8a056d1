"""--middleware: the user's own ASGI classes and functions around every request.

They are inside the layer that logs and counts requests, and outside the one that checks keys.
"""

import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvasir.config.options import ConfigError
from kvasir.frontend.errors import internal_error

log = logging.getLogger(__name__)


Factory = Callable[[ASGIApp], ASGIApp]


def load_middleware(names: Sequence[str]) -> list[Factory]:
    """Import classes and coroutine functions (module.name). Raises ConfigError."""
    return [_load(name) for name in names]


def _load(name: str) -> Factory:
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigError(
            f"--middleware {name}: give the path of a class or function, for example package.module.name"
        )
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module is a program: its mistakes are of any kind
        raise ConfigError(f"--middleware {name} cannot be imported ({type(error).__name__}: {error})") from error
    if inspect.isclass(found):
        return cast(Factory, found)
    if inspect.iscoroutinefunction(found):
        return partial(BaseHTTPMiddleware, dispatch=found)
    raise ConfigError(
        f"--middleware {name} is neither a class nor a coroutine function: give an ASGI middleware class, or a "
        "function with the parameters request and call_next"
    )


def add_middleware(app: Starlette, loaded: Sequence[Factory]) -> None:
    for factory in loaded:
        app.add_middleware(factory)
    if loaded:
        app.add_middleware(_Guard)


class _Guard:
    """Answers with status 500 for middleware that raises."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            if scope["type"] != "http" or started:
                raise
            record = scope["state"]["record"]
            log.exception(
                "the middleware failed with request %s (%s %s)", record.request_id, record.method, record.path
            )
            error = internal_error(record.request_id)
            record.error = error.message
            await error.response()(scope, receive, send)
