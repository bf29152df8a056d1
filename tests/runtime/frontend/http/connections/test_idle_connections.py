import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvasir.frontend.http.connections import disconnection
from kvasir.frontend.http.connections.acceptor import Acceptor
from kvasir.frontend.http.connections.disconnection import close_idle
from kvasir.frontend.server import FLUSH_SECONDS
from runtime.frontend.harness import running_frontend


class Idle:
    """A connection over a socket pair, and its transport."""

    def __init__(self, name: str, idle_since: float | None, closed: list[str]) -> None:
        self.transport: Any = self
        self.idle_since = idle_since
        self._name, self._closed = name, closed
        self._socket, self.client = socket.socketpair()

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self._socket

    def is_closing(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._closed.append(self._name)
        self._socket.close()

    def end(self) -> None:
        self._socket.close()
        self.client.close()


@contextmanager
def connections(*idle_since: float | None) -> Iterator[tuple[list[Idle], list[str]]]:
    """Connections named a, b, ..., and the names of those that were closed, in order."""
    closed: list[str] = []
    made = [Idle(name, since, closed) for name, since in zip("abcdef", idle_since, strict=False)]
    try:
        yield made, closed
    finally:
        for each in made:
            each.end()


async def test_the_longest_idle_connection_is_closed_first() -> None:
    with connections(3.0, None, 1.0, 2.0) as (made, closed):
        await close_idle(made)
        assert closed == ["c", "d", "a"]


async def test_a_connection_with_unread_bytes_stays_for_its_answer() -> None:
    with connections(1.0, 2.0) as (made, closed):
        made[0].client.send(b"GET")
        await close_idle(made)
        assert closed == ["b"]


async def test_close_idle_takes_turns_and_spares_a_new_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    with connections(1.0, 2.0, 3.0) as (made, closed):

        async def sleep(seconds: float) -> None:
            if not seconds:
                return
            pauses.append(seconds)
            if len(pauses) == 1:
                assert closed == ["a"]
                made[1].idle_since = None

        monkeypatch.setattr(disconnection, "MAX_PAUSES_SECONDS", 0.006)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await close_idle(made)
        assert closed == ["a", "c"]
        assert pauses == [0.002] * 3


async def test_a_connection_whose_client_may_be_about_to_send_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnection, "IDLE_SECONDS", 0.1)
    loop = asyncio.get_running_loop()
    with connections(loop.time(), 1.0) as (made, closed):
        answered = made[0].idle_since
        assert answered is not None
        await close_idle(made)
        assert closed == ["b", "a"]
        assert loop.time() - answered >= 0.1


async def test_one_that_the_client_has_closed_is_no_error() -> None:
    with connections(1.0) as (made, _):
        made[0].end()
        await close_idle(made)


async def test_a_listener_that_closes_accepts_who_has_connected() -> None:
    made: list[asyncio.Protocol] = []
    opened = asyncio.Event()

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"hello")
            transport.close()
            made.append(self)
            if len(made) == 3:
                opened.set()

    factory: Callable[[], asyncio.Protocol] = Greeting
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = Acceptor(listener, 8, factory, None)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]  # in the kernel's queue
        acceptor.close()
        assert acceptor.is_starting
        await asyncio.wait_for(opened.wait(), 60)
        for client in clients:
            with client:
                assert client.recv(8) == b"hello"


async def test_stop_without_connections_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, sleep = [], asyncio.sleep

    async def recorded(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    async with running_frontend(engine=False):
        monkeypatch.setattr(asyncio, "sleep", recorded)
    assert [seconds for seconds in slept if seconds != FLUSH_SECONDS] == []
