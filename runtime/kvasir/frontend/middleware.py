"""Around every request: its X-Request-Id, the check of its key, and a plain answer for our own defects."""

import logging
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvasir.frontend.errors import ApiError, internal_error
from kvasir.frontend.service import Service

log = logging.getLogger(__name__)

MAX_REQUEST_ID = 256
"""Characters of a client's X-Request-Id that are taken over; a longer one is replaced by one of ours."""
PROTECTED = "/v1/"
"""Probes, metrics and the version are open: they tell nothing of anybody's requests."""

_UNAUTHORIZED = {"WWW-Authenticate": "Bearer"}


class Entrance:
    """The outermost ASGI layer of the app."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _header(scope, b"x-request-id").decode("latin-1")
        if not request_id or len(request_id) > MAX_REQUEST_ID:
            request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id, self._service)
        try:
            if error := self._refusal(scope):
                await error.response()(scope, receive, answer.send)
            else:
                await self._app(scope, receive, answer.send)
        except Exception:
            log.exception("request %s (%s %s) failed", request_id, scope["method"], scope["path"])
            if answer.started:
                raise
            await internal_error(request_id).response()(scope, receive, answer.send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if not self._service.keys.needed or not scope["path"].startswith(PROTECTED):
            return None
        scheme, _, key = _header(scope, b"authorization").partition(b" ")
        if scheme.lower() != b"bearer" or not key:
            message = "an API key is needed: send the header Authorization: Bearer YOUR_KEY"
            return ApiError(401, message, code="missing_api_key", headers=_UNAUTHORIZED)
        if not self._service.keys.accept(key.strip()):
            return ApiError(401, "the API key is wrong", code="invalid_api_key", headers=_UNAUTHORIZED)
        return None


class _Answer:
    """Adds headers to the response as it starts."""

    def __init__(self, send: Send, request_id: str, service: Service) -> None:
        self._send = send
        self._request_id = request_id
        self._service = service
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = [*message.get("headers", ()), (b"x-request-id", self._request_id.encode("latin-1"))]
            if self._service.stopping:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)


def _header(scope: Scope, name: bytes) -> bytes:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in headers if key == name), b"")
