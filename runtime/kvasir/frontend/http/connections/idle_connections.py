"""Closes the idle keep-alive connections of a stopping server, one after the other.

A client that sends a request while its connection is closed does not know whether it was computed. So a connection
is closed when it has been idle for a second and no bytes wait in it, the longest idle one first: its client is the
least likely to send now. All clients would otherwise connect again in one moment.
"""

import array
import asyncio
import fcntl
import termios
from collections.abc import Collection
from typing import Final, Protocol

IDLE_SECONDS: Final = 1.0
"""Time without a request after which a connection is closed: the client of a younger one may be about to send."""
PAUSE_SECONDS: Final = 0.005
"""Time between two connections."""
MOST_SECONDS: Final = 2.0
"""Time for all pauses; the pauses are shorter if there are many."""


class MaybeIdle(Protocol):
    """A connection of the server."""

    transport: asyncio.Transport

    @property
    def idle_since(self) -> float | None:
        """Time of the event loop when it had its last answer; None while a request is on it."""


async def close_idle(connections: Collection[MaybeIdle]) -> None:
    """Close those that are idle and stay so until their turn. Answers end the others, if they have the header
    `Connection: close`."""
    idle = [
        (since, number, each) for number, each in enumerate(connections) if (since := each.idle_since) is not None
    ]
    if not idle:
        return
    pause = min(PAUSE_SECONDS, MOST_SECONDS / len(idle))
    loop = asyncio.get_running_loop()
    for since, _, connection in sorted(idle):
        await asyncio.sleep(max(0.0, since + IDLE_SECONDS - loop.time()))
        if connection.idle_since is not None and not _has_unread(connection.transport):
            connection.transport.close()
        await asyncio.sleep(pause)


def _has_unread(transport: asyncio.Transport) -> bool:
    """Return whether bytes of the client wait in the kernel: the event loop has not read them yet."""
    if transport.is_closing():
        return False
    count = array.array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, count)
    return count[0] > 0
