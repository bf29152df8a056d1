"""Bare sockets in place of one end of the link, for tests in which that end misbehaves."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from kvasir.link.codec import CODEC, encode
from kvasir.link.protocol import FromEngine, FromFrontend
from runtime.link.peers import PATIENCE, READY, hello

M = TypeVar("M")


class BareEngine:
    """A DEALER that a test controls."""

    def __init__(self, address: str, incarnation: str, **options: object) -> None:
        self.incarnation = incarnation
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 1000
        self.socket.rcvtimeo = int(PATIENCE * 1000)
        self.socket.routing_id = incarnation.encode()
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(address)

    def say(self, *messages: FromEngine | bytes) -> None:
        for message in messages:
            self.socket.send(message if isinstance(message, bytes) else encode(message))

    def introduce(self, **changes: Any) -> None:
        self.say(hello(self.incarnation, **changes), READY)

    def expect(self, kind: type[M]) -> M:
        """The next message of this kind; heartbeats and others before it are passed over."""
        while True:
            message = CODEC.decode_from_frontend(self.socket.recv())
            if isinstance(message, kind):
                return message

    def close(self) -> None:
        self.socket.close()
        self._context.term()


MakeEngine = Callable[..., BareEngine]
"""The fixture `bare`: takes the incarnation and options of the socket."""


class BareFrontend:
    """A ROUTER that a test controls."""

    def __init__(self, address: str = "tcp://127.0.0.1:*", **options: object) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.rcvtimeo = int(PATIENCE * 1000)
        self.socket.router_handover = True
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.bind(address)
        endpoint = self.socket.last_endpoint
        assert isinstance(endpoint, bytes)
        self.address = endpoint.decode().rstrip("\0")

    def say(self, engine: str, message: FromFrontend | bytes) -> None:
        self.socket.send_multipart([engine.encode(), message if isinstance(message, bytes) else encode(message)])

    def expect(self, kind: type[M]) -> M:
        while True:
            _, frame = self.socket.recv_multipart()
            message = CODEC.decode_from_engine(frame)
            if isinstance(message, kind):
                return message

    def hears_nothing_but(self, kind: type, seconds: float) -> bool:
        """Whether nothing else comes within that time."""
        end = time.monotonic() + seconds
        while self.socket.poll(max(0, int((end - time.monotonic()) * 1000))):
            if not isinstance(CODEC.decode_from_engine(self.socket.recv_multipart()[1]), kind):
                return False
        return True

    def close(self) -> None:
        self.socket.close()
        self._context.term()


async def expect(engine: BareEngine, kind: type[M]) -> M:
    """Return the next message of this kind, without blocking the event loop of the other end."""
    return await asyncio.to_thread(engine.expect, kind)
