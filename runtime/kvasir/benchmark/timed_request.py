"""Send one request of the load generator and time its answer.

The time of a token is that of its chunk. Chunks are decoded only as far as the figures need.
"""

import time
from typing import Any

import aiohttp
import msgspec

from kvasir.benchmark.event_stream import DONE, ReceivedEvents
from kvasir.benchmark.figures import RequestOutcome
from kvasir.benchmark.workload import RequestPlan


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_token(self) -> bool:
        # A chat's first chunk may hold the role alone, a last chunk the reason of the end alone.
        if self.delta is None:
            return bool(self.text) or self.finish_reason is None
        delta = self.delta
        has_text = bool(delta.content or delta.reasoning_content or delta.reasoning)
        return has_text or (delta.role is None and self.finish_reason is None)


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_JSON = {"Content-Type": "application/json"}
_decode = msgspec.json.Decoder(_Answer).decode


async def send(session: aiohttp.ClientSession, url: str, plan: RequestPlan) -> RequestOutcome:
    """Send one request and read its answer to the end, or to where the plan hangs up. Raises nothing."""
    body = msgspec.json.encode(plan.body)
    outcome = RequestOutcome(start=time.perf_counter())
    try:
        async with session.post(url + plan.path, data=body, headers=_JSON) as response:
            if response.status != 200:
                outcome.error = f"{response.status}: {(await response.text())[:200]}"
            elif plan.body.get("stream"):
                await _read_stream(response, plan, outcome)
            else:
                _take(outcome, _decode(await response.read()))
                outcome.last = time.perf_counter()
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


async def _read_stream(response: aiohttp.ClientResponse, plan: RequestPlan, outcome: RequestOutcome) -> None:
    chunks, stream = 0, ReceivedEvents(response)
    async with stream.events() as events:
        async for event in events:
            if event.data in ("", DONE):
                continue
            answer = _decode(event.data)
            _take(outcome, answer)
            if outcome.error:
                return
            for choice in answer.choices:
                if choice.has_token:
                    chunks += 1
                    outcome.chunk_came(stream.arrived)
            if plan.hang_up_after is not None and chunks >= plan.hang_up_after:
                outcome.hung_up = True
                return
    if not outcome.first and outcome.tokens:  # its only token had no text
        outcome.chunk_came(time.perf_counter())
    if not outcome.first:
        outcome.error = "the stream ended without a token"
    outcome.tokens = outcome.tokens or chunks  # if the server reports no usage


def _take(outcome: RequestOutcome, answer: _Answer) -> None:
    if answer.error is not None:
        message = answer.error.get("message") if isinstance(answer.error, dict) else answer.error
        outcome.error = str(message)[:200]
    if answer.usage is not None:
        outcome.tokens, outcome.prompt_tokens = answer.usage.completion_tokens, answer.usage.prompt_tokens
