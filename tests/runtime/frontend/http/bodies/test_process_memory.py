"""What the process holds of large bodies, at the real limits: as much as their bytes, and nothing afterwards."""

import asyncio
import itertools
import json
from pathlib import Path

from runtime.frontend.harness import POST_JSON, eventually
from runtime.frontend.scripted import TIMEOUT
from runtime.frontend.test_process import Process, running_process

MIB = 2**20
SIZE = 27 * MIB
PIECE = 64 * 1024
CLIENTS = 4
ROUNDS = 3
PARSING = 2 * SIZE
"""The parser copies the text, and makes a string of it."""
SPARE = 16 * MIB
"""Slack for other changes meanwhile."""


class Memory:
    """The memory of one process, in bytes."""

    def __init__(self, process: Process) -> None:
        self._path = Path(f"/proc/{process.process.pid}/status")

    @property
    def resident(self) -> int:
        return self._field("VmRSS")

    @property
    def peak(self) -> int:
        return self._field("VmHWM")

    def _field(self, name: str) -> int:
        return int(self._path.read_text().partition(f"{name}:")[2].split()[0]) * 1024


async def refused_together(process: Process) -> None:
    """Send large bodies side by side, and end one after the other: each is refused for its length."""
    body = b'{"prompt":"%s"}' % (b"[1, 2] " * (SIZE // 7))
    url = process.client.base_url
    streams = [await asyncio.open_connection(url.host, url.port) for _ in range(CLIENTS)]
    for _, writer in streams:
        writer.write(POST_JSON + b"Content-Length: %d\r\n\r\n" % len(body))
    last = (len(body) - 1) // PIECE * PIECE
    for start, (_, writer) in itertools.product(range(0, last, PIECE), streams):
        writer.write(body[start : start + PIECE])
        await writer.drain()
    for reader, writer in streams:
        writer.write(body[last:])
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        error = json.loads(await reader.readexactly(length))["error"]
        assert error["code"] == "context_length_exceeded", error
        writer.close()


async def test_large_bodies_do_not_leave_memory_behind() -> None:
    async with running_process() as process:
        await process.client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
        memory = Memory(process)
        before = memory.resident
        for _ in range(ROUNDS):
            async with asyncio.timeout(TIMEOUT):
                await refused_together(process)
        assert memory.peak - before < CLIENTS * SIZE + PARSING + SPARE

        async def left_none() -> bool:
            return memory.resident - before < SPARE

        await eventually(left_none)  # it answers before it frees the body
