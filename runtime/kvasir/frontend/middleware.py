"""Middleware of every request: RecordMiddleware outside, CORS if enabled, AccessMiddleware inside."""

import logging
import re
import secrets
import time
from collections.abc import Awaitable
from typing import Final

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvasir.client.request_errors import TooManyRequests
from kvasir.frontend.errors import CLIENT_CLOSED_REQUEST, ApiError, as_api_error, error_response, internal_error
from kvasir.frontend.page.page_files import DOCS_FILES, PAGE_FILES
from kvasir.frontend.service import Service
from kvasir.frontend.telemetry.request_log import RequestRecord
from kvasir_contract.endpoints import LIVE_PATH, METRICS_PATH, READY_PATH

log = logging.getLogger(__name__)

# polled every few seconds, so not logged
PROBES: Final = frozenset({"/health", LIVE_PATH, READY_PATH, "/ping", METRICS_PATH, "/load"})
# without a key: the answers contain nothing of any request
OPEN: Final = PROBES | {"/", "/v1", "/v1/", "/version", "/openapi.json", "/docs"} | {*PAGE_FILES, *DOCS_FILES}
GENERATING: Final = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/invocations"}
)

POOLING: Final = frozenset(
    {"/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score"}
    | {"/rerank", "/v1/rerank", "/v2/rerank"}
)

# for response headers and logs
_SANE_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")


class RecordMiddleware:
    """Adds request id, log line, metrics and trace."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(_request_id(scope), scope["method"], scope["path"])
        scope.setdefault("state", {}).update(request_id=record.request_id, record=record)
        if record.method == "HEAD":
            # GET's routes answer it; uvicorn omits the body by its own scope
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, _Answer(send, record, self._service).send)
        finally:
            record.status = record.status or CLIENT_CLOSED_REQUEST
            seconds = time.perf_counter() - record.started
            self._service.metrics.http_request_ended(_route(scope), record.method, record.status, seconds)
            if self._service.log_requests and record.path not in PROBES:
                record.write()
            if self._service.tracing is not None and record.path not in PROBES:
                self._service.tracing.request_ended(record, _route(scope), scope["headers"])


class _Answer:
    def __init__(self, send: Send, record: RequestRecord, service: Service) -> None:
        self._send = send
        self._record = record
        self._service = service

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self._record.status = self._record.status or message["status"]  # the server may have rejected its body
            headers = [*message.get("headers", ())]
            if self._service.sends_request_ids:
                headers.append((b"x-request-id", self._record.request_id.encode("latin-1")))
            if self._service.stopping:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        return self._send(message)


class AccessMiddleware:
    """Checks key and room, and turns unexpected exceptions into a plain 500."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record: RequestRecord = scope["state"]["record"]
        error = self._refusal(scope)
        if error is None:
            try:
                await self._app(scope, receive, send)
                return
            except Exception:
                log.exception("request %s (%s %s) failed", record.request_id, record.method, record.path)
                if record.status:
                    raise
                error = internal_error(record.request_id)
        record.error = error.message
        await error_response(error, scope)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        path = scope["path"]
        if path not in OPEN and (error := self._service.access.refusal(scope["headers"])):
            return error
        generates = path in GENERATING
        if (generates or path in POOLING) and scope["method"] == "POST":
            if generates is self._service.pools:
                return self._service.wrong_kind(path)
            try:
                # before the body is read; the journal checks again for each prompt
                self._service.llm.check_room()
            except TooManyRequests as full:
                return as_api_error(full, scope["state"]["request_id"])
        return None


def _request_id(scope: Scope) -> str:
    given = _header(scope, b"x-request-id")
    return given.decode("ascii") if _SANE_REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def _route(scope: Scope) -> str:
    # the route's path: metrics need few of them
    path: str = scope["path"]
    return getattr(scope.get("route"), "path", path if path in GENERATING | POOLING else "none")


def _header(scope: Scope, name: bytes) -> bytes:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    for key, value in headers:
        if key == name:
            return value
    return b""


class RootPath:
    """The outermost layer: all others see paths as the API describes them."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path == self._root_path:  # the URLs of pages are relative to a folder
                await RedirectResponse(f"{path}/")(scope, receive, send)
                return
            while path.startswith(self._root_path + "/"):
                path = path.removeprefix(self._root_path)
            scope = {**scope, "path": path, "root_path": self._root_path}
        await self._app(scope, receive, send)
