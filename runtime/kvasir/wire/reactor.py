"""The event loop of a thread with ZMQ sockets."""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable

import zmq

from kvasir.wire.death_watch import DeathWatch

log = logging.getLogger(__name__)


class Reactor:
    """Belongs to one thread. Other threads may only call `post`."""

    def __init__(self, death_watch: DeathWatch | None = None) -> None:
        # `death_watch` shuts the connections down when this process is killed.
        self._death_watch = death_watch
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._handlers: dict[zmq.Socket[bytes], Callable[[], object]] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._bell_lock = threading.Lock()
        self._rung = False
        self._closed = False
        ear = self._ear = self.context.socket(zmq.PAIR)
        ear.bind("inproc://bell")
        self._bell = self.context.socket(zmq.PAIR)
        self._bell.connect("inproc://bell")
        self.watch(ear, self._run_commands)

    def post(self, command: Callable[[], None]) -> None:
        """Call `command` soon in the owner's thread, in the order of the posts. Never blocks."""
        self._commands.append(command)
        with self._bell_lock:
            if not self._rung and not self._closed:
                self._rung = True
                self._bell.send(b"", zmq.NOBLOCK)

    def hold(self, number: int, descriptor: int) -> None:
        if self._death_watch is not None:
            self._death_watch.hold(number, descriptor)

    def release(self, number: int) -> None:
        if self._death_watch is not None:
            self._death_watch.release(number)

    def watch(self, socket: "zmq.Socket[bytes]", handler: Callable[[], object]) -> None:
        self._handlers[socket] = handler
        self._poller.register(socket, zmq.POLLIN)

    def read(self, socket: "zmq.Socket[bytes]", handle: Callable[[list[bytes]], object]) -> None:
        self.watch(socket, lambda: handle(socket.recv_multipart(zmq.NOBLOCK)))

    def unwatch(self, socket: "zmq.Socket[bytes]") -> None:
        if self._handlers.pop(socket, None) is not None:
            self._poller.unregister(socket)

    def wait(self, seconds: float) -> None:
        for socket, _ in self._poller.poll(max(0, math.ceil(seconds * 1000))):
            if (handler := self._handlers.get(socket)) is not None:  # an earlier handler may have closed it
                try:
                    handler()
                except Exception:
                    log.exception("an event of the link was not handled")

    def close(self) -> None:
        # waits for the linger of closed sockets
        with self._bell_lock:
            if self._closed:
                return
            self._closed = True
            self._bell.close(linger=0)
        self._ear.close(linger=0)
        self.context.term()

    def _run_commands(self) -> None:
        self._ear.recv(zmq.NOBLOCK)
        self._rung = False  # before the commands: a later one rings again
        while self._commands:
            command = self._commands.popleft()
            try:
                command()
            except Exception:
                log.exception("a command to the link failed")
