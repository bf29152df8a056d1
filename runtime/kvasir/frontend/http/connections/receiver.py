"""Receives bytes in pieces of limited size, in one buffer for all connections."""

import asyncio
from collections.abc import Callable
from typing import Final

# uvloop otherwise reads up to 256 KiB, and the connection keeps what a request has not read
MAX_PIECE: Final = 16 * 1024

# each piece is parsed before the next is read
_BUFFER: Final = memoryview(bytearray(MAX_PIECE))


class Receiver(asyncio.BufferedProtocol):
    """Passes on memoryviews, which are valid during the call."""

    __slots__ = ("_on_lost", "_to")

    def __init__(self, to: asyncio.Protocol, on_lost: Callable[[], None]) -> None:
        self._to = to
        self._on_lost = on_lost

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self._to.data_received(_BUFFER[:nbytes])  # type: ignore[arg-type]  # parsed, not kept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._to.connection_made(transport)

    def eof_received(self) -> bool | None:
        return self._to.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._to.connection_lost(exc)
        self._on_lost()

    def pause_writing(self) -> None:
        self._to.pause_writing()

    def resume_writing(self) -> None:
        self._to.resume_writing()
