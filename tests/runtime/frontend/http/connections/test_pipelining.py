"""Requests that are sent before the answers to earlier ones have come."""

import asyncio
import contextlib
import gc
import json
import weakref

import pytest

from kvasir.frontend.http.connections.connection import MAX_HEAD_BYTES, MAX_QUEUED
from runtime.frontend.harness import POST_JSON, Frontend
from runtime.frontend.http.connections.test_http_versions import GET, read_answer
from runtime.frontend.http.connections.test_slow_clients import connect, connection_of
from runtime.frontend.scripted import TIMEOUT

GARBAGE = b"\x00garbage\r\n\r\n"


def post(**fields: object) -> bytes:
    body = json.dumps({"prompt": "Hi", **fields}).encode()
    return POST_JSON + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def until_queued(frontend: Frontend, count: int) -> None:
    connection = connection_of(frontend)
    async with asyncio.timeout(TIMEOUT):
        while len(connection.pipeline) < count:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


@pytest.mark.parametrize("together", [True, False], ids=["together", "one after the other"])
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_client_that_leaves_ends_the_running_request_of_a_queue(
    frontend: Frontend, together: bool, stream: bool
) -> None:
    frontend.engine.script.pause_at = 0
    _, writer = await connect(frontend)
    writer.write(post(n=3, stream=stream) + (post() * MAX_QUEUED if together else b""))
    await asyncio.to_thread(frontend.engine.wait_requests, 3)
    if not together:
        for _ in range(MAX_QUEUED):
            writer.write(post())
        await until_queued(frontend, MAX_QUEUED)
    writer.close()
    await asyncio.to_thread(frontend.engine.wait_aborts, 3)
    await frontend.idle()
    assert len(frontend.engine.seen.requests) == 3


async def test_a_client_that_queues_without_end_is_not_read_meanwhile(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 0
    reader, writer = await connect(frontend)
    writer.write(post())
    await asyncio.to_thread(frontend.engine.wait_requests, 1)
    connection = connection_of(frontend)
    for number in range(MAX_QUEUED + 1):
        assert not connection.flow.read_paused
        writer.write(GET)
        await until_queued(frontend, number + 1)
    assert connection.flow.read_paused
    frontend.engine.script.pause_at = None
    frontend.engine.resume()
    for _ in range(MAX_QUEUED + 2):
        head, _ = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_bytes_of_a_body_before_a_head_do_not_count_as_headers(frontend: Frontend) -> None:
    reader, writer = await connect(frontend)
    writer.write(GET)
    await read_answer(reader)
    connection = connection_of(frontend)
    connection.data_received(post(user="x" * 2 * MAX_HEAD_BYTES) + GET[:-2])
    connection.data_received(GET[-2:])
    for _ in range(2):
        assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize("queued", [0, 1, 2])
async def test_nothing_is_said_within_a_running_answer(frontend: Frontend, queued: int) -> None:
    frontend.engine.script.pause_at = 1
    reader, writer = await connect(frontend)
    writer.write(post(stream=True))
    async with asyncio.timeout(TIMEOUT):
        received = await reader.readuntil(b"data: ")
        writer.write(post() * queued + GARBAGE)
        with contextlib.suppress(ConnectionResetError):
            received += await reader.read()
    assert received.count(b"HTTP/1.1 ") == 1
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()
    writer.close()


async def test_garbage_before_an_answer_ends_the_requests(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 0
    reader, writer = await connect(frontend)
    writer.write(post() + post())
    await asyncio.to_thread(frontend.engine.wait_requests, 1)
    writer.write(GARBAGE)
    head, body = await read_answer(reader)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "bad_http"
    assert await reader.read() == b""
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()
    writer.close()


@pytest.mark.parametrize("part", [b"GET /version HT", post().removesuffix(b"}")], ids=["head", "body"])
async def test_late_queued_request_does_not_end_the_answer_before_it(frontend: Frontend, part: bytes) -> None:
    """Its time begins when the one before it is answered."""
    frontend.engine.script.pause_at = 1
    reader, writer = await connect(frontend)
    writer.write(post())
    await asyncio.to_thread(frontend.engine.wait_requests, 1)
    connection = connection_of(frontend)
    writer.write(part)
    async with asyncio.timeout(TIMEOUT):
        while not connection._receiving:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    for _ in range(3):  # as if the time had passed so often
        connection._upload_is_late()
    frontend.engine.script.pause_at = None
    frontend.engine.resume()
    head, _ = await read_answer(reader)
    assert head.startswith(b"HTTP/1.1 200 ")
    if part.startswith(b"GET"):
        connection._upload_is_late()
        assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_connection_leaves_nothing_for_the_garbage_collector(frontend: Frontend) -> None:
    gc.disable()
    try:
        reader, writer = await connect(frontend)
        writer.write(GET + post(max_tokens=2))
        for _ in range(2):
            await read_answer(reader)
        gone = asyncio.Event()
        weakref.finalize(connection_of(frontend), gone.set)
        writer.close()
        async with asyncio.timeout(TIMEOUT):
            await gone.wait()
    finally:
        gc.enable()
