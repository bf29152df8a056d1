"""Reads a JSON body within all limits: no step blocks the event loop for more than about 100 ms."""

import asyncio
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect, Request

from kvasir.client.input.fair_queue import current_client
from kvasir.client.request_errors import InvalidRequest
from kvasir.frontend.errors import ApiError, bad_field
from kvasir.frontend.http.access import client_of, slots_of
from kvasir.frontend.http.bodies.body_memory import UNCOUNTED
from kvasir.frontend.http.bodies.json_cost import SMALL
from kvasir.frontend.middleware import GENERATING
from kvasir.frontend.service import Service, service_of

_JSON_TYPE = re.compile(rb"application/([\w.-]+\+)?json", re.IGNORECASE)
# The counts are limited before validation, which costs microseconds per item. Each limit is more than a model can
# use: a message has at least one token, a bias is for one token.
MAX_FIELDS: Final = 256  # with unknown ones
MAX_MESSAGES: Final = 8192
MAX_PARTS: Final = 8192  # of content or tool calls, in all messages
MAX_BIASES: Final = 65_536  # for larger vocabularies; OpenAI accepts 300

# Python takes 4 bytes per character of a text with one beyond U+FFFF
WIDEST_CHARACTER: Final = 4


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """Return the JSON object of the body.

    Raises ApiError 400, 408, 413 and 415, and TooManyRequests if all arriving or all parsed bodies are too large.
    """
    headers = dict(reversed(request.scope["headers"]))  # the first of equal names
    if not _is_json(headers.get(b"content-type", b"")):
        raise ApiError(
            415, "the body is not marked as JSON: send the header Content-Type: application/json", code="not_json"
        )
    if encoding := headers.get(b"content-encoding"):
        name = encoding.decode("latin-1")
        raise ApiError(415, f"Content-Encoding {name!r} is not supported: send the JSON uncompressed")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
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
    _hold_memory(body, service)  # bodies wait for their turn to be counted
    context = service.llm.max_model_len
    if len(body) <= SMALL:
        return _parsed(body, context, request, service)
    async with service.cost_check.turn(body, context):
        return _parsed(body, context, request, service)


def _parsed(body: bytes | bytearray, context: int, request: Request, service: Service) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the request body must be a JSON object", code="invalid_json")
    check_counts(value, context, service.llm.input.vocab_size, service.max_prompts)
    _hold_share(request, value, service)
    return value


def _is_json(content_type: bytes) -> bool:
    # pages of other sites can send other types without asking (CORS)
    return bool(_JSON_TYPE.fullmatch(content_type.partition(b";")[0].strip()))


def _hold_share(request: Request, body: dict[str, Any], service: Service) -> None:
    client, waiting = client_of(request.scope, service.access.keys.count)
    current_client.set(waiting)
    if request.scope["route"].path in GENERATING:  # several paths lead to it, such as /v1/completions%0A
        slots = slots_of(body)
        service.shares.hold(client, slots)
        _when_the_request_ends(lambda: service.shares.release(client, slots))


def _when_the_request_ends(action: Callable[[], None]) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda _: action())


def _hold_memory(body: bytes | bytearray, service: Service) -> None:
    # --max-live-requests bounds short ones
    if len(body) <= UNCOUNTED:
        return
    narrow = body.isascii() and b"\\u" not in body
    size = len(body) * (1 if narrow else WIDEST_CHARACTER)
    service.parsed_bodies.hold(size)
    _when_the_request_ends(lambda: service.parsed_bodies.release(size))


async def _read(request: Request, limit: int, service: Service) -> bytes | bytearray:
    piece, more = await _receive(request)
    if len(piece) > limit:
        raise _too_large(limit)
    if not more:  # usually the whole body
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
            piece = b""  # free it: the next may take long
            piece, more = await _receive(request)
    finally:
        service.uploads.release(held)


async def _receive(request: Request) -> tuple[bytes, bool]:
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


def check_counts(body: Mapping[str, Any], context: int, vocabulary: int, prompts: int) -> None:
    """Raise ApiError or InvalidRequest (400) with the field and its limit.

    `context` and `vocabulary`: in tokens. `prompts`: limit of a completion's prompts.
    """
    if len(body) > MAX_FIELDS:
        name = next(islice(body, MAX_FIELDS, None))
        raise bad_field(name[:64], f"the request has {len(body)} fields: send at most {MAX_FIELDS}")
    _check_size(body, "messages", "messages", MAX_MESSAGES)
    _check_parts(body.get("messages"))
    _check_size(body, "logit_bias", "entries", min(vocabulary, MAX_BIASES))
    _check_size(body, "allowed_token_ids", "token ids", vocabulary)
    _check_number_of_prompts(body.get("prompt"), prompts)
    if body.get("truncate_prompt_tokens") is None:
        _check_prompt_length(body.get("prompt"), context)


def _check_size(body: Mapping[str, Any], name: str, what: str, limit: int) -> None:
    value = body.get(name)
    if isinstance(value, list | dict) and len(value) > limit:
        raise bad_field(name, f"{name}: {len(value)} {what} are too many, send at most {limit}")


def _check_parts(messages: Any) -> None:
    if not isinstance(messages, list):
        return
    for field, what in (("content", "parts of content"), ("tool_calls", "tool calls")):
        count = 0
        for message in messages:
            if isinstance(message, dict) and isinstance(parts := message.get(field), list):
                count += len(parts)
        if count > MAX_PARTS:
            raise bad_field("messages", f"messages: {count} {what} are too many, send at most {MAX_PARTS}")


def _check_number_of_prompts(prompt: Any, limit: int) -> None:
    if isinstance(prompt, list) and len(prompt) > limit and isinstance(prompt[0], str | list):
        raise bad_field("prompt", f"prompt: {len(prompt)} prompts are too many, send at most {limit}")


def _check_prompt_length(prompt: Any, context: int) -> None:
    if not isinstance(prompt, list) or not prompt:
        return
    longest = len(prompt)
    if isinstance(prompt[0], str | list):
        longest = max((len(each) for each in prompt if isinstance(each, list)), default=0)
    if longest >= context:
        raise InvalidRequest(
            f"the prompt has {longest} tokens, and the context of {context} tokens must also hold the answer: "
            f"shorten the prompt to at most {context - 1} tokens",
            "prompt",
            "context_length_exceeded",
        )
