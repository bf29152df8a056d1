"""A ZMQ socket on the asyncio loop, without a thread and without futures: the link's hot path in a frontend.

A ZMQ descriptor is edge-triggered: it becomes readable when *something* happened to the socket, and every call on
the socket, a send too, may use that up. So a wake-up reads until nothing is left, and after a send the socket is
asked whether there is something to read. Works on uvloop and on the standard loop.
"""

import asyncio
import logging
from collections.abc import Callable

import zmq

BATCH = 128
"""Messages handled before the loop serves others."""

log = logging.getLogger(__name__)


class LoopSocket:
    """Calls `handle` with the frames of each message. Owned by one event loop."""

    def __init__(self, socket: zmq.Socket[bytes], handle: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._fd = socket.fileno()
        self._reading = False
        self._scheduled = False
        self._loop.add_reader(self._fd, self.read)
        self._look_again()  # what came before the reader was added signals no more

    def send(self, frames: list[bytes]) -> None:
        """Never blocks. Raises zmq.Again when the peer's queue is full, zmq.ZMQError when there is no such peer."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        finally:
            if not self._reading:
                self._look_again()

    def read(self) -> None:
        """Handle what there is, up to a batch; the rest in the loop's next turn."""
        self._scheduled = False
        if self._reading or self._socket.closed:
            return
        self._reading = True
        try:
            for _ in range(BATCH):
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    return
                self._deliver(frames)
                if self._socket.closed:  # by what was just handled
                    return
        finally:
            self._reading = False
        self._look_again()

    @property
    def has_more(self) -> bool:
        """Messages wait for the loop's next turn."""
        return self._scheduled

    def close(self, linger: float = 0.0) -> None:
        """`linger`: seconds that messages already sent get to leave, in the background."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=int(linger * 1000))

    def _deliver(self, frames: list[bytes]) -> None:
        try:
            self._handle(frames)
        except Exception:
            # A defect in what handles one message must not cost the edge that the others wait for.
            log.exception("a message on the link was not handled")

    def _look_again(self) -> None:
        if not self._scheduled and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._scheduled = True
            self._loop.call_soon(self.read)
