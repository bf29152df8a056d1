import asyncio
import json
import re
import socket

import pytest

from kvasir.frontend import server
from kvasir.frontend.http.connections.connection import Connection
from runtime.frontend.harness import POST_JSON, Frontend, running_frontend
from runtime.frontend.scripted import TIMEOUT

SHORT = 1.0
"""Seconds; longer than a collection of garbage, which takes 0.4 s in a busy test process."""
PROMPTS = 500
HEAD = POST_JSON + b"Content-Length: 100\r\n"


async def connect(frontend: Frontend) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = frontend.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def answer_to(frontend: Frontend, sent: bytes) -> bytes:
    """Everything that comes until the server closes the connection."""
    reader, writer = await connect(frontend)
    writer.write(sent)
    async with asyncio.timeout(TIMEOUT):
        received = await reader.read()
    writer.close()
    return received


@pytest.mark.parametrize(
    ("sent", "text"),
    [(HEAD, "headers did not arrive"), (HEAD + b"\r\n{", "request body did not arrive")],
    ids=["in its head", "in its body"],
)
async def test_an_upload_that_stops_is_408_and_its_connection_closed(sent: bytes, text: str) -> None:
    async with running_frontend(upload_timeout=SHORT) as frontend:
        received = await answer_to(frontend, sent)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"x-request-id: " in head
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert text in json.loads(body)["error"]["message"]
        assert "--upload-timeout" in json.loads(body)["error"]["message"]


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with running_frontend(upload_timeout=SHORT) as frontend:
        assert await answer_to(frontend, b"") == b""


async def test_a_body_that_nobody_waits_for_ends_with_its_connection() -> None:
    """It was refused for its key; the client goes on sending for ever."""
    async with running_frontend(upload_timeout=SHORT, api_key=("secret",)) as frontend:
        received = await answer_to(frontend, HEAD + b"\r\n{")
        assert received.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("sent", "rest"),
    [(HEAD + b"\r\n", b"x" * 100), (b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n")],
    ids=["the rest of a refused body", "an empty line"],
)
async def test_a_connection_that_is_idle_after_more_bytes_is_closed(
    sent: bytes, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE", SHORT)
    async with running_frontend(api_key=("secret",)) as frontend:
        reader, writer = await connect(frontend)
        writer.write(sent)
        async with asyncio.timeout(TIMEOUT):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(rest)
            await reader.read()
        writer.close()


async def test_a_refused_upload_can_be_sent_before_its_answer_is_read() -> None:
    """To close with unread bytes would reset the connection."""
    async with running_frontend(api_key=("secret",)) as frontend:
        reader, writer = await connect(frontend)
        writer.write(POST_JSON + b"Connection: close\r\nContent-Length: 100000\r\n\r\n")
        async with asyncio.timeout(TIMEOUT):
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(100):
                writer.write(b"x" * 1000)
                await writer.drain()
            assert b"missing_api_key" in await reader.read()
        writer.close()


def connection_of(frontend: Frontend) -> Connection:
    """The only one there is."""
    (connection,) = frontend.server.server_state.connections
    assert isinstance(connection, Connection)
    return connection


async def test_a_long_answer_is_not_bound_by_the_time_for_uploads(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 1
    async with frontend.http() as client:
        async with client.stream("POST", "/v1/completions", json={"prompt": "Hi", "stream": True}) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            assert connection_of(frontend)._upload_timer is None
            frontend.engine.resume()
            rest = [line async for line in lines]
        assert "data: [DONE]" in rest
        assert connection_of(frontend)._upload_timer is None


async def test_a_request_that_waits_behind_a_long_answer_is_not_late(frontend: Frontend) -> None:
    """Pipelined: it is the server that does not read the second body."""
    frontend.engine.script.pause_at = 1
    reader, writer = await connect(frontend)
    body = json.dumps({"prompt": "Hi", "max_tokens": 3, "user": "x" * 1_000_000}).encode()
    head = POST_JSON + f"Content-Length: {len(body)}\r\n\r\n".encode()
    writer.write((head + body) * 2)
    await asyncio.to_thread(frontend.engine.wait_requests, 1)
    connection = connection_of(frontend)
    async with asyncio.timeout(TIMEOUT):
        while not connection.flow.read_paused:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    for _ in range(3):  # as if the time had passed so often
        connection._upload_is_late()
    frontend.engine.script.pause_at = None
    frontend.engine.resume()
    for _ in range(2):
        async with asyncio.timeout(TIMEOUT):
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
            length = re.search(rb"content-length: (\d+)", answer)
            assert length is not None
            await reader.readexactly(int(length[1]))
    writer.close()


def send_for_a_long_answer(frontend: Frontend, stream: bool) -> socket.socket:
    """More than the sockets between the two hold: the prompts come back in the answer. Blocks."""
    host, port = frontend.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    prompts = [[1000] * 1900] * PROMPTS
    request = {"prompt": prompts, "stream": stream, "max_tokens": 1, "return_token_ids": True, "echo": True}
    body = json.dumps(request).encode()
    head = POST_JSON + b"Content-Length: %d\r\n\r\n" % len(body)
    client.sendall(head + body)
    frontend.engine.wait_requests(PROMPTS)
    return client


async def test_client_that_never_reads_is_cut_off_without_a_trace() -> None:
    async with running_frontend(stalled_reader_timeout=SHORT) as frontend:
        client = await asyncio.to_thread(send_for_a_long_answer, frontend, True)
        await frontend.idle()
        client.close()


async def test_client_that_reads_slowly_is_not_cut_off(frontend: Frontend) -> None:
    client = await asyncio.to_thread(send_for_a_long_answer, frontend, False)
    connection = connection_of(frontend)
    async with asyncio.timeout(TIMEOUT):
        while not connection.flow.write_paused:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        for _ in range(3):
            while connection.transport.get_write_buffer_size() >= connection._unread:
                await asyncio.to_thread(client.recv, 65536)
            connection._reader_stalls()  # as if the time had passed
            assert connection.flow.write_paused
            assert not connection.transport.is_closing()
        connection._reader_stalls()
    assert connection.transport.is_closing()
    await frontend.idle()
    client.close()


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01 this is TLS\r\n\r\n", b"CONNECT x:443 HTTP/1.1\r\n\r\n", b"GET http://x HTTP/1.1\r\n\r\n"],
    ids=["TLS", "a tunnel", "a target without a path"],
)
@pytest.mark.parametrize("before", [b"", b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["first", "second"])
async def test_what_is_not_http_is_told_in_the_same_form(frontend: Frontend, before: bytes, sent: bytes) -> None:
    reader, writer = await connect(frontend)
    async with asyncio.timeout(TIMEOUT):
        if before:
            writer.write(before)
            assert await reader.readuntil(b"}")
        writer.write(sent)
        received = await reader.read()
    writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: " in head
    assert json.loads(body)["error"]["code"] == "bad_http"


async def test_endless_headers_are_refused(frontend: Frontend) -> None:
    await assert_endless_headers_are_refused(frontend, b"GET /health HTTP/1.1\r\nHost: x\r\n")


async def assert_endless_headers_are_refused(frontend: Frontend, begin: bytes) -> None:
    reader, writer = await connect(frontend)
    writer.write(begin)
    answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    async with asyncio.timeout(TIMEOUT):
        for number in range(100_000):
            if answer.done():
                break
            writer.write(b"x-%d: %s\r\n" % (number, b"y" * 1000))
            await asyncio.sleep(0)
    assert answer.result().startswith(b"HTTP/1.1 431 ")
    writer.close()
