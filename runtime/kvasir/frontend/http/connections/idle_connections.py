"""Closes the idle keep-alive connections of a stopping server, one after the other."""

import array
import asyncio
import fcntl
import termios
from collections.abc import Collection
from typing import Final, Protocol

# A client that sends while its connection is closed does not know if the request was computed. So close the longest
# idle one first, after a second without requests, and only if no bytes wait.
IDLE_SECONDS: Final = 1.0
# otherwise all clients would connect again at once
PAUSE_SECONDS: Final = 0.005
MAX_PAUSES_SECONDS: Final = 2.0


class MaybeIdle(Protocol):
    transport: asyncio.Transport

    @property
    def idle_since(self) -> float | None:
        pass


async def close_idle(connections: Collection[MaybeIdle]) -> None:
    # answers with `Connection: close` end the others
    idle = [
        (since, number, each) for number, each in enumerate(connections) if (since := each.idle_since) is not None
    ]
    if not idle:
        return
    pause = min(PAUSE_SECONDS, MAX_PAUSES_SECONDS / len(idle))
    loop = asyncio.get_running_loop()
    for since, _, connection in sorted(idle):
        await asyncio.sleep(max(0.0, since + IDLE_SECONDS - loop.time()))
        if connection.idle_since is not None and not _has_unread(connection.transport):
            connection.transport.close()
        await asyncio.sleep(pause)


def _has_unread(transport: asyncio.Transport) -> bool:
    """Return whether the kernel has unread bytes."""
    if transport.is_closing():
        return False
    count = array.array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, count)
    return count[0] > 0
