"""Send a request, keep its answer with the times of its chunks, and compare it with the expected one."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from kvasir.benchmark.event_stream import DONE, ReceivedEvents
from kvasir.chaos.questions import Question

# The code of the error of a request that looks as if it ended its engines (docs/design/poison.md).
REFUSED: Final = "engine_failed_repeatedly"
_LEFT_OUT: Final = frozenset({"id", "created", "prompt_tokens_details"})
# These values of a chunk replace the earlier ones. Other texts and lists are appended.
_REPLACED: Final = frozenset(
    {"finish_reason", "stop_reason", "role", "object", "model", "system_fingerprint", "type"}
)


@dataclass
class Answer:
    """The answer as the client got it. Times are seconds of time.monotonic."""

    sent: float
    ended: float = 0.0
    # Of the chunks with a token; empty if the answer was not streamed.
    chunks: list[float] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    code: str = ""

    @property
    def text(self) -> str:
        choices = self.content.get("choices")
        choice = (choices or [{}])[0]
        return str(choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or "")


async def ask(session: aiohttp.ClientSession, url: str, question: Question) -> Answer:
    # Errors become part of the answer.
    answer = Answer(time.monotonic())
    try:
        async with session.post(url + question.path, json=question.body) as response:
            if response.status != 200:
                _take_error(answer, await response.text(), f"status {response.status}")
            elif question.streamed:
                await _read_stream(response, answer)
            else:
                answer.content = _without(json.loads(await response.read()))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended = time.monotonic()
    return answer


def difference(value: Any, expected: Any, tolerance: float, path: str = "") -> str:
    """Return the first place that differs, with both values; "" if there is none.

    Numbers with a fraction are log probabilities, which may differ by the tolerance.
    """
    if isinstance(expected, dict) and isinstance(value, dict):
        if value.keys() != expected.keys():
            return f"{path}: fields {sorted(value)} instead of {sorted(expected)}"
        pairs = [(f"{path}.{name}", value[name], expected[name]) for name in expected]
    elif isinstance(expected, list) and isinstance(value, list):
        if len(value) != len(expected):
            return f"{path}: {len(value)} entries instead of {len(expected)}"
        pairs = [(f"{path}[{n}]", *pair) for n, pair in enumerate(zip(value, expected, strict=True))]
    elif isinstance(expected, float) and isinstance(value, float):
        same = math.isclose(value, expected, rel_tol=0, abs_tol=tolerance)
        return "" if same else f"{path}: {value} instead of {expected}"
    else:
        return "" if value == expected else f"{path}: {value!r} instead of {expected!r}"
    return next(filter(None, (difference(one, other, tolerance, where) for where, one, other in pairs)), "")


def join_chunk(joined: dict[int, dict[str, Any]], chunk: Mapping[str, Any]) -> bool:
    """Add a chunk of a stream to its choices. Return whether it had a token or the end of a choice."""
    found = False
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta") or {}
        token = choice.get("text") or delta.get("content") or delta.get("tool_calls")
        found = found or bool(token or choice.get("finish_reason"))
        _add(joined.setdefault(choice["index"], {}), choice)
    return found


async def _read_stream(response: aiohttp.ClientResponse, answer: Answer) -> None:
    choices: dict[int, dict[str, Any]] = {}
    usage: Any = None
    async with ReceivedEvents(response).events() as events:
        async for event in events:
            if event.data == DONE:
                answer.content = {"choices": [choices[index] for index in sorted(choices)], "usage": usage}
                return
            chunk = json.loads(event.data)
            if "error" in chunk:
                _take_error(answer, event.data, "in the stream")
                return
            if join_chunk(choices, _without(chunk)):
                answer.chunks.append(time.monotonic())
            usage = _without(chunk.get("usage")) or usage
    answer.error = "the stream ended before its last event"


def _add(joined: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, dict):
            inner = joined.setdefault(name, {})
            _add(inner, value)
        elif name == "tool_calls":
            _add_calls(joined.setdefault(name, []), value or ())
        elif isinstance(value, str | list) and name not in _REPLACED:
            joined[name] = joined.get(name, type(value)()) + value
        elif value is not None:
            joined[name] = value


def _add_calls(joined: list[dict[str, Any]], pieces: Iterable[Mapping[str, Any]]) -> None:
    # A piece names the call that it belongs to by its index.
    for piece in pieces:
        call = next((call for call in joined if call["index"] == piece["index"]), None)
        if call is None:
            joined.append(call := {})
        _add(call, piece)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner) for name, inner in value.items() if name not in _LEFT_OUT}
    return [_without(inner) for inner in value] if isinstance(value, list) else value


def _take_error(answer: Answer, text: str, where: str) -> None:
    try:
        error = json.loads(text)["error"]
        answer.code = str(error.get("code") or "")
        message = str(error["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        message = text
    answer.error = f"{where}: {' '.join(message.split())[:300]}"
