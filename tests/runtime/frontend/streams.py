"""How tests of several endpoints read a stream, and leave one."""

import asyncio
import json
from typing import Any

from runtime.frontend.harness import Frontend


def named_events(content: bytes) -> list[Any]:
    """Return the parsed events of a stream whose events have names; checks their framing byte by byte."""
    assert content.endswith(b"\n\n")
    events = []
    for block in content.removesuffix(b"\n\n").split(b"\n\n"):
        name, data = block.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    return events


async def leave_after_first_token(frontend: Frontend, body: bytes, path: str, *, read: bool) -> None:
    """Send a raw request, wait until the engine has it (and something was answered), and hang up."""
    host, port = frontend.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    await asyncio.to_thread(frontend.engine.wait_requests, 1)
    if read:
        await reader.readuntil(b"data: ")
    writer.close()
    await writer.wait_closed()
