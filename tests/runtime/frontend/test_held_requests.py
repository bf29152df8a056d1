import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from openai.types.chat import ChatCompletionMessageParam

from kvasir.frontend.generation import sse
from kvasir.link.protocol import Progress
from kvasir_contract.phases import Phase
from runtime.frontend.harness import ANSWER, MODEL, Frontend, eventually, running_frontend

CHAT = "/v1/chat/completions"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a pod?"}]
BODY = {"messages": QUESTION, "stream": True}
STREAMS = {
    CHAT: BODY,
    "/v1/completions": {"prompt": "What is", "stream": True},
    "/v1/responses": {"input": "What is a pod?", "stream": True},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 20, "model": MODEL, "stream": True},
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_SECONDS", "KEEP_ALIVE_SECONDS", "PROGRESS_SECONDS"):
        monkeypatch.setattr(sse, name, 0.01)


async def until(lines: AsyncIterator[str], wanted: str) -> None:
    """Read until this line comes."""
    async for line in lines:
        if line == wanted:
            return
    raise AssertionError(f"the stream ended without {wanted!r}")


def test_progress_is_reported_every_few_seconds() -> None:
    assert sse.PROGRESS_SECONDS == 5


@pytest.mark.usefixtures("short")
async def test_a_held_stream_reports_progress_and_is_answered() -> None:
    async with (
        running_frontend(engine=False) as frontend,
        frontend.http() as client,
        client.stream("POST", CHAT, json=BODY) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        await until(lines, ": waiting for an engine: none is connected")
        engine = await frontend.add_engine(ready=False)
        await until(lines, ": waiting for an engine: Starting")
        engine._link.set_phase(Phase.LOADING, Progress(3_100_000_000, 15_000_000_000))
        await until(lines, ": waiting for an engine: Loading 3.1/15.0 GB")
        engine.announce_ready()
        events = [line.removeprefix("data: ") async for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("path", STREAMS)
async def test_every_stream_reports_progress(path: str) -> None:
    async with (
        running_frontend(engine=False) as frontend,
        frontend.http() as client,
        client.stream("POST", path, json=STREAMS[path]) as response,
    ):
        await until(response.aiter_lines(), ": waiting for an engine: none is connected")


@pytest.mark.usefixtures("short")
async def test_a_pinned_stream_reports_the_progress_of_its_rank() -> None:
    async with (
        running_frontend() as frontend,
        frontend.http() as client,
    ):
        await frontend.add_engine(ready=False)
        async with client.stream("POST", CHAT, json=BODY | {"data_parallel_rank": 1}) as response:
            lines = response.aiter_lines()
            await until(lines, ": waiting for an engine of data-parallel rank 1: Starting")
            frontend.engines[1].announce_ready()
            await until(lines, "data: [DONE]")


@pytest.mark.usefixtures("short")
async def test_the_client_library_reads_over_the_progress() -> None:
    async with running_frontend(engine=False) as frontend, frontend.openai() as client:
        # The library returns the stream when the head is there.
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        await frontend.add_engine()
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == ANSWER


async def test_an_answer_in_one_piece_waits_silently() -> None:
    async with running_frontend(engine=False) as frontend, frontend.http() as client:
        task = asyncio.create_task(client.post(CHAT, json={"messages": QUESTION, "n": 2}))
        await held(frontend, 2)
        assert 'kvasir:held_requests{model_name="demo"} 2.0' in (await client.get("/metrics")).text
        await frontend.add_engine()
        answer = (await task).json()
        assert [choice["message"]["content"] for choice in answer["choices"]] == [ANSWER] * 2
        metrics = (await client.get("/metrics")).text
    assert 'kvasir:held_requests{model_name="demo"} 0.0' in metrics
    assert 'kvasir:request_held_seconds_count{model_name="demo"} 2.0' in metrics


async def held(frontend: Frontend, count: int) -> None:
    async def enough() -> bool:
        return frontend.service.llm.held_requests == count

    await eventually(enough)


async def test_a_client_that_leaves_frees_its_place() -> None:
    async with running_frontend(engine=False) as frontend, frontend.http() as client:
        tasks = [asyncio.create_task(client.post(CHAT, json=BODY | {"stream": kind})) for kind in (True, False)]
        await held(frontend, 2)
        for task in tasks:
            task.cancel()
        await held(frontend, 0)
        await frontend.idle()


async def test_a_bad_request_is_refused_at_once() -> None:
    async with running_frontend(engine=False) as frontend, frontend.http() as client:
        response = await client.post(CHAT, json=BODY | {"temperature": 9})
        too_long = await client.post("/v1/completions", json={"prompt": "word " * 5000})
    assert response.status_code == 400
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hold_that_is_over_is_503_with_retry_after(stream: bool) -> None:
    async with running_frontend(engine=False, hold_timeout=0.05) as frontend, frontend.http() as client:
        response = await client.post(CHAT, json=BODY | {"stream": stream})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_unavailable")
    assert "--hold-timeout" in response.json()["error"]["message"]
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.usefixtures("short")
async def test_a_hold_that_is_over_after_the_head_is_an_event() -> None:
    async with (
        running_frontend(engine=False, hold_timeout=0.5) as frontend,
        frontend.http() as client,
        client.stream("POST", CHAT, json=BODY) as response,
    ):
        assert response.status_code == 200
        events = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    (event,) = events
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "engine_unavailable"


async def test_the_503_has_the_measured_time_of_a_start() -> None:
    async with running_frontend(engine=False, max_held_requests=1) as frontend, frontend.http() as client:
        frontend.service.llm._starts.seconds = 100.0
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await held(frontend, 1)
        seconds = {int((await client.post(CHAT, json=BODY)).headers["retry-after"]) for _ in range(20)}
        waiting.cancel()
    assert len(seconds) > 1
    assert 80 <= min(seconds) <= max(seconds) <= 120


async def test_a_server_that_stops_ends_held_requests() -> None:
    async with running_frontend(engine=False) as frontend, frontend.http() as client:
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await held(frontend, 1)
        frontend.server.stop("a signal")
        frontend.server.stop("a signal")
        response = await waiting
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
