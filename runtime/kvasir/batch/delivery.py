"""Deliver one request, with retries while the server is busy, starting or unreachable."""

from asyncio import sleep
from dataclasses import dataclass
from time import monotonic
from typing import Final

import httpx
import msgspec

from kvasir.batch.batch_input import BatchRequest
from kvasir.batch.batch_output import BatchResponse

# seconds; doubles after each attempt
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
# for a server's Retry-After
MAX_RETRY_AFTER: Final = 300.0
# then the request itself may cause the status of 500 or more
FAILED_ATTEMPTS: Final = 3

_BUSY: Final = (429, 503)
_REFUSED_KEY: Final = (401, 403)


class NotDelivered(Exception):
    """No attempt was accepted."""

    def __init__(self, message: str, reached: bool) -> None:
        super().__init__(message)
        # the last attempt got an answer
        self.reached = reached


class KeyRefused(Exception):
    """The server rejects the API key."""


@dataclass(frozen=True)
class Patience:
    # seconds after the first attempt in which another may begin
    retry: float


class BatchDelivery:
    def __init__(self, http: httpx.AsyncClient, patience: Patience) -> None:
        self._http = http
        self._patience = patience

    async def deliver(self, request: BatchRequest) -> BatchResponse:
        """Raises NotDelivered or KeyRefused."""
        last = monotonic() + self._patience.retry
        pause, failed = FIRST_PAUSE, 0
        while True:
            answer, problem = await self._attempt(request)
            if answer is not None and answer.status_code not in _BUSY:
                failed += 1
                if answer.status_code < 500 or failed == FAILED_ATTEMPTS:
                    return _response(answer)
            wait = max(pause, 0.0 if answer is None else _retry_after(answer))
            if monotonic() + wait > last:
                raise NotDelivered(problem, reached=answer is not None)
            await sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _attempt(self, request: BatchRequest) -> tuple[httpx.Response | None, str]:
        headers = {"Content-Type": "application/json"}
        try:
            answer = await self._http.post(request.url, content=bytes(request.body), headers=headers)
        except httpx.RequestError as error:
            return None, str(error) or type(error).__name__
        if answer.is_success:
            return answer, ""
        problem = f"{answer.status_code}: {message_of(answer.content) or answer.reason_phrase}"
        if answer.status_code in _REFUSED_KEY:
            raise KeyRefused(problem)
        return answer, problem


def _response(answer: httpx.Response) -> BatchResponse:
    return BatchResponse(answer.status_code, answer.headers.get("X-Request-Id", ""), _one_line(answer.content))


def _one_line(content: bytes) -> msgspec.Raw:
    # an answer that is not JSON becomes a JSON string
    try:
        return msgspec.Raw(msgspec.json.format(content, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(content.decode(errors="replace")))


def _retry_after(answer: httpx.Response) -> float:
    # a date counts as 0
    text = answer.headers.get("Retry-After", "")
    return min(float(text), MAX_RETRY_AFTER) if text.isascii() and text.isdigit() else 0.0


def message_of(content: bytes) -> str:
    """Return the message of OpenAI's error form, or the beginning of the text, on one line."""
    try:
        text = str(msgspec.json.decode(content)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError, UnicodeDecodeError, RecursionError):
        text = content[:800].decode(errors="replace")
    return " ".join(text[:200].split())
