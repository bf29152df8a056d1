"""A ZMQ socket on the asyncio loop, without a thread and without futures: the hot path."""

import asyncio
import logging
from collections.abc import Callable

import zmq

BATCH = 128  # messages before other callbacks run

log = logging.getLogger(__name__)


class LoopSocket:
    """Calls `handle` with the frames of each message. Owned by one event loop.

    ZMQ's descriptor is edge-triggered, and every call, even a send, may reset it. So each wake-up reads until the
    queue is empty, and each send is followed by a check.
    """

    def __init__(self, socket: zmq.Socket[bytes], handle: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._fd = socket.fileno()
        self._reading = False
        self._scheduled = False
        self._loop.add_reader(self._fd, self.read)
        self._look_again()  # messages from before the reader do not signal again

    def send(self, frames: list[bytes]) -> None:
        """Raises zmq.Again if the peer's queue is full, zmq.ZMQError for an unknown peer."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        finally:
            if not self._reading:
                self._look_again()

    def read(self) -> None:
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
                if self._socket.closed:
                    return
        finally:
            self._reading = False
        self._look_again()

    @property
    def has_more(self) -> bool:
        return self._scheduled

    def close(self, linger: float = 0.0) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=int(linger * 1000))

    def _deliver(self, frames: list[bytes]) -> None:
        try:
            self._handle(frames)
        except Exception:
            # An error must not lose the wake-up of later messages.
            log.exception("an error in Kvasir: a message on the link was not handled")

    def _look_again(self) -> None:
        if not self._scheduled and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._scheduled = True
            self._loop.call_soon(self.read)
