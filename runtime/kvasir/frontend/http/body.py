"""Reads a request's JSON body, within the size limit; called by every route that takes one."""

import asyncio
import re
from typing import Final

import orjson
from starlette.requests import ClientDisconnect, Request

from kvasir.frontend.errors import ApiError
from kvasir.frontend.service import Service, service_of

MAX_BRACKETS: Final = 1_000_000
"""Arrays and objects of one body. Parsing so many takes about a second, in which no other request is served."""
_JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json", re.IGNORECASE)


async def read_json(request: Request, limit: int) -> dict[str, object]:
    """The JSON object that the client sent.

    Raises ApiError: 413 when the body is larger than `limit` bytes (known from Content-Length or found while
    reading), 408 when it does not arrive in time, 415 when it is compressed or of another type than JSON, 400 when
    it is not a JSON object; and TooManyRequests when the bodies that are being received are too large together.
    """
    headers = request.headers
    if not _is_json(headers.get("content-type", "")):
        raise ApiError(
            415, "the body is not marked as JSON: send the header Content-Type: application/json", code="not_json"
        )
    if encoding := headers.get("content-encoding"):
        raise ApiError(415, f"Content-Encoding {encoding!r} is not supported: send the JSON uncompressed")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    service = service_of(request)
    seconds = service.upload_timeout
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, limit, service)
    except TimeoutError:
        raise ApiError(
            408,
            f"the request body did not arrive within {seconds:g} s, this server's --upload-timeout",
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None
    if not body:
        raise ApiError(400, "the request has no body: send a JSON object", code="invalid_json")
    if len(body) > MAX_BRACKETS and body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
        raise ApiError(
            400,
            f"the request body has more than {MAX_BRACKETS} opening brackets, [ and {{ together: send it in parts",
            code="invalid_json",
        )
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the request body must be a JSON object", code="invalid_json")
    return value


def _is_json(content_type: str) -> bool:
    """application/json, or a type of JSON like application/x+json. A page of another site can send other types
    without asking (CORS)."""
    return bool(_JSON_TYPE.fullmatch(content_type.partition(";")[0].strip()))


async def _read(request: Request, limit: int, service: Service) -> bytes | bytearray:
    """Read the whole body. Its pieces count against the limit of uploads until the body is complete."""
    piece, more = await _receive(request)
    if len(piece) > limit:
        raise _too_large(limit)
    if not more:  # most bodies: all of it at once
        return piece
    body, held = bytearray(), 0
    try:
        while True:
            body += piece
            if len(body) > limit:
                raise _too_large(limit)
            if not more:
                return body
            service.uploads.hold(len(piece))
            held += len(piece)
            piece, more = await _receive(request)
    finally:
        service.uploads.release(held)


async def _receive(request: Request) -> tuple[bytes, bool]:
    """The next piece of the body, and whether there is more. Raises ClientDisconnect."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"the request body is larger than {limit} bytes, this server's --max-request-bytes",
        code="request_too_large",
    )
