"""Hostile servers of /status, each on its own loopback address and all on one port.

An engine runs the user's image, so the operator must handle any response.
"""

import asyncio
import contextlib
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

_MEGABYTE: Final = 2**20
_ATTEMPTS: Final = 20


@contextlib.asynccontextmanager
async def fake_engines(answers: Mapping[str, Answer]) -> AsyncIterator[tuple[int, Mapping[str, str]]]:
    """Serve the responses in the block. Yield their port, and their addresses by name."""
    addresses = {name: f"127.0.7.{number}" for number, name in enumerate(answers, 1)}
    async with contextlib.AsyncExitStack() as stack:
        yield await _listen(stack, answers, addresses), addresses


async def _listen(
    stack: contextlib.AsyncExitStack, answers: Mapping[str, Answer], addresses: Mapping[str, str]
) -> int:
    for _ in range(_ATTEMPTS):
        servers: list[asyncio.Server] = []
        port = 0
        try:
            for name, address in addresses.items():
                server = await asyncio.start_server(_handler(answers[name]), address, port)
                servers.append(server)
                port = server.sockets[0].getsockname()[1]
        except OSError:  # the port of the first address is in use on another one
            for server in servers:
                server.close()
            continue
        for server in servers:
            stack.callback(server.close)
        return port
    raise AssertionError("no port is free on all addresses")


def _handler(answer: Answer) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            with contextlib.suppress(asyncio.CancelledError):  # the test is over
                await answer(writer)
        writer.close()

    return handle


def body(content: bytes, *headers: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(_head(f"Content-Length: {len(content)}", *headers) + content)
        await writer.drain()

    return answer


def report(**fields: object) -> Answer:
    """Return an engine's report with these fields changed."""
    sane = {"phase": "Loading", "message": "", "progress": {"done": 1, "total": 2}, "live_requests": 0, "rank": 0}
    return body(json.dumps({**sane, **fields}).encode())


def raw_report(progress: str) -> Answer:
    """Return a report whose progress is this text."""
    return body(b'{"phase": "Loading", "message": "", "progress": ' + progress.encode() + b"}")


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(_head())
    while True:
        writer.write(b" " * _MEGABYTE)
        await writer.drain()


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Header: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def slow(writer: asyncio.StreamWriter) -> None:
    writer.write(_head("Content-Length: 100000"))
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.1)


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


def gzip_bomb(megabytes: int) -> Answer:
    compressor = zlib.compressobj(level=9, wbits=31)
    content = b"".join(compressor.compress(b" " * _MEGABYTE) for _ in range(megabytes)) + compressor.flush()
    return body(content, "Content-Encoding: gzip")


def small_gzip_bomb() -> Answer:
    """Return 16 MB of data, compressed to less than the size limit of a report."""
    return body(gzip.compress(b" " * 16 * _MEGABYTE), "Content-Encoding: gzip")


def redirect(url: Callable[[], str]) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {url()}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    return answer


def _head(*headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
