"""Data that belongs together leaves in one write, to save system calls and wake-ups."""

import asyncio
import json
from collections.abc import Iterable

import pytest

from kvasir.frontend.http.connections.connection import Connection
from kvasir.frontend.http.connections.transports import HeadWithBody
from runtime.frontend.harness import POST_JSON, Frontend
from runtime.frontend.http.connections.test_slow_clients import connect, connection_of
from runtime.frontend.scripted import TIMEOUT

QUESTIONS: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": [5, 6, 7]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}


class Recorder(asyncio.Transport):
    def __init__(self, inner: asyncio.Transport | None = None) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self._inner = inner

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        if self._inner is not None:
            self._inner.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def recorded(connection: Connection) -> list[bytes]:
    """Record every later write of this connection."""
    recorder = Recorder(connection.transport)
    connection.transport = recorder
    return recorder.written


def test_a_head_leaves_with_the_first_piece_of_its_body() -> None:
    transport = Recorder()
    answer = HeadWithBody(transport, transport.close)
    answer.write(b"head\r\n\r\n")
    assert transport.written == []
    answer.write(b"one")
    answer.write(b"two")
    answer.close()
    assert transport.written == [b"head\r\n\r\none", b"two"]
    assert transport.closed


def test_head_without_its_body_is_sent_before_the_close() -> None:
    transport = Recorder()
    answer = HeadWithBody(transport, transport.close)
    answer.write(b"head\r\n\r\n")
    answer.close()
    assert transport.written == [b"head\r\n\r\n"]
    assert transport.closed


@pytest.mark.parametrize("path", QUESTIONS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_comes_at_once_is_one_write(frontend: Frontend, path: str, stream: bool) -> None:
    frontend.engine.script.answer = []
    async with frontend.http() as client:
        await client.get("/version")
        written = recorded(connection_of(frontend))
        answer = await client.post(path, json={**QUESTIONS[path], "stream": stream})
        connection = connection_of(frontend)
        assert isinstance(connection.transport, Recorder)
        connection.transport = connection.transport._inner  # type: ignore[assignment]
    assert answer.status_code == 200
    assert len(written) == 1
    assert written[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert written[0].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else answer.content)


async def test_the_first_tokens_do_not_wait_for_the_last(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 1
    async with (
        frontend.http() as client,
        client.stream("POST", "/v1/completions", json={"prompt": "Hi", "stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        assert json.loads((await anext(lines)).removeprefix("data: "))["choices"][0]["text"]
        frontend.engine.resume()
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_client_that_waits_to_send_gets_100_continue_at_once(frontend: Frontend) -> None:
    reader, writer = await connect(frontend)
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3}).encode()
    head = POST_JSON.decode() + "Expect: 100-continue\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    async with asyncio.timeout(TIMEOUT):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["object"] == "text_completion"
    writer.close()
