"""Server-sent events of an aiohttp answer, parsed by httpx-sse."""

import codecs
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, cast

import aiohttp
from httpx_sse import EventSource, ServerSentEvent

DONE: Final = "[DONE]"


class ReceivedEvents:
    """The parts of an httpx answer that httpx-sse uses, and the time of the last bytes."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.headers = {"content-type": "text/event-stream"}  # some servers name another type
        self.arrived = 0.0
        """Seconds of time.perf_counter. Events that arrive together have the same time."""
        self._content = response.content

    async def aiter_text(self) -> AsyncIterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async for data in self._content.iter_any():
            self.arrived = time.perf_counter()
            if text := decoder.decode(data):
                yield text

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncGenerator[ServerSentEvent, None]]:
        async with aclosing(EventSource(cast(Any, self)).aiter_sse()) as events:
            yield events
