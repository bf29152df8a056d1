"""A model hub that accepts connections and never answers, as a network that drops packets looks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest


@asynccontextmanager
async def silent_hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """Processes that are started meanwhile ask it; the event is set when one does."""
    asked = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        asked.set()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    try:
        yield asked
    finally:
        for writer in writers:
            writer.close()
        server.close()
