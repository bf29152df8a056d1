"""What a client sends around its bodies is bounded: heads, trailers and chunk extensions, in bytes and in lines."""

import asyncio
import json
import resource

import pytest

from kvasir.frontend.http.connections.connection import MAX_HEAD_BYTES, MAX_HEADERS
from runtime.frontend.harness import Frontend
from runtime.frontend.scripted import TIMEOUT

BODY = json.dumps({"prompt": "Hi", "max_tokens": 2}).encode()
CHUNKED = b"%s /%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
COMPLETION = CHUNKED % (b"POST", b"v1/completions") + b"%x\r\n%s\r\n" % (len(BODY), BODY)
FLOOD = 256 * 2**20
"""Bytes that a client tries to send."""
GROWTH = 64 * 2**20
"""Bytes that this process, which has both ends of the connection, may grow by meanwhile."""


async def connect(frontend: Frontend) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = frontend.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def flood(writer: asyncio.StreamWriter, piece: bytes) -> int:
    """Send until the server closes the connection; return the bytes that went out."""
    sent = 0
    try:
        while sent < FLOOD:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (COMPLETION + b"0\r\n", b"x-trailer: 1\r\n" * 5000),
        (COMPLETION + b"0\r\nx-", b"y" * 65536),
        (COMPLETION + b"0\r\nx-trailer: ", b"y" * 65536),
        (COMPLETION + b"5;", b"y" * 65536),
        (CHUNKED % (b"GET", b"health") + b"0\r\n", b"x-trailer: 1\r\n" * 5000),
        (b"GET /health HTTP/1.1\r\n", b"x: 1\r\n" * 10_000),
        (b"GET /health HTTP/1.1\r\nx: ", b"y" * 65536),
        (b"GET /health?", b"y" * 65536),
    ],
    ids=["trailers", "name", "value", "extension", "of an answered request", "headers", "header", "url"],
)
async def test_a_flood_around_a_body_ends_the_connection(frontend: Frontend, begin: bytes, piece: bytes) -> None:
    before = peak_memory()
    _, writer = await connect(frontend)
    writer.write(begin)
    async with asyncio.timeout(TIMEOUT):
        assert await flood(writer, piece) < FLOOD
    assert peak_memory() - before < GROWTH
    writer.close()
    await frontend.idle()


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (COMPLETION + b"0\r\n" + b"x: 1\r\n" * (MAX_HEAD_BYTES // 3), "trailers are larger than"),
        (b"GET /health HTTP/1.1\r\n" + b"x: 1\r\n" * 300 + b"\r\n", f"more than {MAX_HEADERS} headers"),
        (b"GET /health?" + b"x" * 3 * MAX_HEAD_BYTES, "line and headers are larger than"),
    ],
    ids=["trailers", "headers", "url"],
)
async def test_what_is_too_long_is_431(frontend: Frontend, sent: bytes, message: str) -> None:
    frontend.engine.script.pause_at = 0
    reader, writer = await connect(frontend)
    writer.write(sent)
    async with asyncio.timeout(TIMEOUT):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert message in json.loads(body)["error"]["message"]
    writer.close()
    await frontend.idle()


async def test_trailers_are_dropped_and_do_not_become_headers(frontend: Frontend) -> None:
    reader, writer = await connect(frontend)
    writer.write(COMPLETION + b"0\r\nContent-Encoding: gzip\r\nx-request-id: trailer\r\n\r\n")
    async with asyncio.timeout(TIMEOUT):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"x-request-id: trailer" not in head.lower()
    writer.close()


async def test_a_long_body_in_small_chunks_is_not_taken_for_trailers(frontend: Frontend) -> None:
    body = json.dumps({"prompt": "Hi", "max_tokens": 2, "user": "x" * 3 * MAX_HEAD_BYTES}).encode()
    reader, writer = await connect(frontend)
    writer.write(CHUNKED % (b"POST", b"v1/completions"))
    writer.write(b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    async with asyncio.timeout(TIMEOUT):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()
