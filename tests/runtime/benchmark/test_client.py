"""One request of the load generator: every server's way to stream gives the same times and counts."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kvasir.benchmark.figures import RequestOutcome
from kvasir.benchmark.timed_request import send
from kvasir.benchmark.workload import RequestPlan

STREAMED = {"stream": True}


@asynccontextmanager
async def serving(pieces: Sequence[bytes], status: int = 200) -> AsyncIterator[str]:
    """A server that answers everything with these pieces, each flushed on its own."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def outcome_of(pieces: Sequence[bytes], plan: RequestPlan | None = None, status: int = 200) -> RequestOutcome:
    async with serving(pieces, status) as url, aiohttp.ClientSession() as session:
        return await send(session, url, plan or RequestPlan("/v1/completions", STREAMED))


def events(*each: dict[str, Any], end: str = "\n\n") -> bytes:
    return "".join(f"data: {json.dumps(event)}{end}" for event in each).encode() + f"data: [DONE]{end}".encode()


def text(piece: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "text": piece, "finish_reason": finish_reason, "logprobs": None}]}


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish_reason}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
COMPLETION = (text("a"), text(""), text("b", "length"), USAGE)


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_stream_is_read_the_same_however_it_is_cut(end: str, size: int) -> None:
    data = events(*COMPLETION, end=end)
    outcome = await outcome_of([data[at : at + size] for at in range(0, len(data), size)])
    assert outcome.error == ""
    assert (outcome.tokens, outcome.prompt_tokens, len(outcome.gaps)) == (3, 7, 2)
    assert outcome.start <= outcome.first <= outcome.last


async def test_the_role_and_the_end_of_a_chat_are_no_tokens() -> None:
    chunks = (delta(role="assistant", content=""), delta(content="a"), delta(reasoning_content="b"), delta("stop"))
    outcome = await outcome_of([events(*chunks)])
    assert (outcome.tokens, len(outcome.gaps)) == (2, 1), "without usage the chunks are counted"


async def test_a_single_token_without_text_is_a_token() -> None:
    outcome = await outcome_of([events(text("", "stop"), {"choices": [], "usage": {"completion_tokens": 1}})])
    assert (outcome.error, outcome.tokens) == ("", 1)
    assert outcome.first


async def test_a_client_that_hangs_up_is_no_failure() -> None:
    outcome = await outcome_of([events(*COMPLETION)], RequestPlan("/v1/completions", STREAMED, hang_up_after=1))
    assert (outcome.hung_up, outcome.error) == (True, "")


async def test_a_whole_answer_has_an_end_and_no_first_token() -> None:
    answer = {"choices": [{"text": "abc", "finish_reason": "length"}], "usage": USAGE["usage"]}
    outcome = await outcome_of([json.dumps(answer).encode()], RequestPlan("/v1/completions", {}))
    assert (outcome.tokens, outcome.first) == (3, 0.0)
    assert outcome.last > outcome.start


@pytest.mark.parametrize(
    ("pieces", "status", "message"),
    [
        ([b"busy"], 503, "503: busy"),
        ([events(text("a"), {"error": {"message": "engine lost"}})], 200, "engine lost"),
        ([events()], 200, "the stream ended without a token"),
        ([b"data: {nonsense\n\n"], 200, "DecodeError"),
    ],
)
async def test_what_goes_wrong_is_the_outcomes_error(pieces: list[bytes], status: int, message: str) -> None:
    assert message in (await outcome_of(pieces, status=status)).error


async def test_a_server_that_is_away_is_an_error_too() -> None:
    async with aiohttp.ClientSession() as session:
        outcome = await send(session, "http://127.0.0.1:9", RequestPlan("/v1/completions", STREAMED))
    assert "127.0.0.1:9" in outcome.error
