import asyncio
import json
from collections.abc import AsyncGenerator

import pytest
from openai.types.chat import ChatCompletionMessageParam
from starlette.types import Message, Scope

from kvasir.frontend.generation import sse
from kvasir.frontend.generation.sse import DONE, KEEP_ALIVE, EventStream
from kvasir.frontend.http.connections.disconnection import Disconnection, LiveRequests
from runtime.frontend.harness import ANSWER, MODEL, Frontend
from runtime.frontend.scripted import TIMEOUT

CHAT = "/v1/chat/completions"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a pod?"}]
NEVER = 3600.0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEAD_SECONDS", 0.01)
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)


def test_the_head_is_sent_before_proxies_give_up() -> None:
    assert sse.HEAD_SECONDS == 5
    assert sse.KEEP_ALIVE_SECONDS == 15


# ---------------------------------------------------------------------------------------------- over HTTP


async def resume(frontend: Frontend) -> None:
    """Comments may come before the engine has the request."""
    await asyncio.to_thread(frontend.engine.wait_requests, 1)
    frontend.engine.resume()


@pytest.mark.usefixtures("short")
async def test_a_stream_without_a_token_has_its_head_and_comments(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 0
    async with (
        frontend.http() as client,
        client.stream("POST", CHAT, json={"messages": QUESTION, "stream": True}) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = response.aiter_lines()
        assert [await anext(lines) for _ in range(6)] == [": keep-alive", ""] * 3
        await resume(frontend)
        rest = [line async for line in lines if line and not line.startswith(":")]
    assert rest[-1] == "data: [DONE]"
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in rest[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
    await frontend.idle()


@pytest.mark.usefixtures("short")
async def test_what_fails_after_the_head_is_an_event(frontend: Frontend) -> None:
    script = frontend.engine.script
    script.pause_at, script.answer, script.error = 0, [], "the sampler gave up"
    async with (
        frontend.http() as client,
        client.stream("POST", CHAT, json={"messages": QUESTION, "stream": True}) as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == ": keep-alive"
        await resume(frontend)
        rest = [line async for line in lines if line and not line.startswith(":")]
    assert response.status_code == 200
    (event,) = rest
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "request_failed"
    await frontend.idle()


@pytest.mark.usefixtures("short")
async def test_the_client_library_reads_over_the_comments(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 0
    async with frontend.openai() as client:
        # The library returns the stream when the head is there.
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        await resume(frontend)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == ANSWER


@pytest.mark.usefixtures("short")
async def test_a_client_that_leaves_before_a_token_ends_its_request(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 0
    async with (
        frontend.http() as client,
        client.stream("POST", CHAT, json={"messages": QUESTION, "stream": True}) as response,
    ):
        await anext(response.aiter_lines())
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()


# ---------------------------------------------------------------------------------------------- by itself


class Client:
    """The server's side of one connection: records all writes, and can make one wait."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.heads = 0
        self.reading = asyncio.Event()
        self.reading.set()
        self.waiting = asyncio.Event()
        """Set while a write waits."""
        self.concurrent_writes = False
        self.scope: Scope = {"type": "http", "state": {}}
        self.disconnection = Disconnection(self.scope, lambda: None)
        self._changed = asyncio.Event()

    async def receive(self) -> Message:
        raise AssertionError("the body has been read")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.heads += 1
            return
        if not self.reading.is_set():
            self.concurrent_writes |= self.waiting.is_set()
            self.waiting.set()
            await self.reading.wait()
            self.waiting.clear()
        self.pieces.append(message["body"])
        self._changed.set()

    async def until(self, pieces: int) -> None:
        async with asyncio.timeout(TIMEOUT):
            while len(self.pieces) < pieces:
                self._changed.clear()
                await self._changed.wait()


def start(client: Client, events: AsyncGenerator[bytes, None]) -> "asyncio.Task[None]":
    stream = EventStream(events, LiveRequests())
    return asyncio.create_task(stream(client.scope, client.receive, client.send))


async def events_of(queue: "asyncio.Queue[bytes]") -> AsyncGenerator[bytes, None]:
    event = b""
    while not event.endswith(DONE):
        event = await queue.get()
        yield event


async def comments_of_another_stream(count: int) -> None:
    """Wait until a stream that began now has got so many: one that is still open would have got some, too."""
    client = Client()
    task = start(client, events_of(asyncio.Queue()))
    await client.until(count)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.usefixtures("short")
async def test_a_finished_stream_never_writes_again() -> None:
    client, queue = Client(), asyncio.Queue[bytes]()
    task = start(client, events_of(queue))
    await client.until(2)
    queue.put_nowait(DONE)
    await task
    assert client.pieces[-1] == DONE
    written = len(client.pieces)
    await comments_of_another_stream(5)
    assert (len(client.pieces), client.heads) == (written, 1)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("end", ["cancelled", "left"])
async def test_an_abandoned_stream_never_writes_again(end: str) -> None:
    client = Client()
    task = start(client, events_of(asyncio.Queue()))
    await client.until(1)
    client.reading.clear()
    await client.waiting.wait()  # a comment is on its way
    if end == "left":
        client.disconnection.report()
        await task
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    written = len(client.pieces)
    client.reading.set()
    await comments_of_another_stream(5)
    assert len(client.pieces) == written


async def test_a_failure_before_the_head_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEAD_SECONDS", NEVER)

    async def failing() -> AsyncGenerator[bytes, None]:
        raise ClientError
        yield b""

    client = Client()
    with pytest.raises(ClientError):
        await start(client, failing())
    assert (client.heads, client.pieces) == (0, [])


class ClientError(Exception):
    pass


@pytest.mark.usefixtures("short")
async def test_an_event_waits_behind_a_comment() -> None:
    client, queue = Client(), asyncio.Queue[bytes]()
    client.reading.clear()
    task = start(client, events_of(queue))
    await client.waiting.wait()  # the first comment
    queue.put_nowait(b"data: 1\n\n")
    await comments_of_another_stream(5)
    assert client.pieces == []
    client.reading.set()
    await client.until(2)
    assert client.pieces[:2] == [KEEP_ALIVE, b"data: 1\n\n"]
    client.reading.clear()
    queue.put_nowait(b"data: 2\n\n")
    await client.waiting.wait()
    before = len(client.pieces)
    await comments_of_another_stream(5)
    queue.put_nowait(DONE)
    client.reading.set()
    await task
    after = [piece for piece in client.pieces[before:] if piece != KEEP_ALIVE]
    assert after == [b"data: 2\n\n", DONE]
    assert not client.concurrent_writes
