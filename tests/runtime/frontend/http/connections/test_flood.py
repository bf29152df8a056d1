import asyncio
import errno
import functools
import socket
from collections.abc import Collection
from typing import Any

import pytest

from kvasir.frontend.http.bodies import body_memory
from kvasir.frontend.http.bodies.body_memory import UploadQueue
from kvasir.frontend.http.connections.acceptor import Acceptor
from kvasir.frontend.http.connections.connection import Connection
from kvasir.frontend.http.connections.transports import MAX_PIECE
from runtime.frontend.harness import POST_JSON, Frontend, eventually
from runtime.frontend.scripted import TIMEOUT

CONNECTIONS = 100
BODY = b'{"prompt":"Hi","max_tokens":1}'
HEAD = POST_JSON + b"Connection: close\r\nContent-Length: %d\r\n\r\n"


class Peer(asyncio.Protocol):
    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Peer.made += 1
        transport.close()


class Exhausted:
    """A listening socket without a file descriptor for another connection, until it has room."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.attempts, self.has_room = 0, False
        self.fileno, self.listen, self.close = listener.fileno, listener.listen, listener.close
        self.setblocking = listener.setblocking

    def accept(self) -> tuple[socket.socket, object]:
        self.attempts += 1
        if not self.has_room:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()


def listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    listener.setblocking(False)
    return listener


async def until_made(count: int) -> int:
    """Return the turns of the event loop until so many connections are made."""
    turns = 0
    async with asyncio.timeout(TIMEOUT):
        while Peer.made < count:
            turns += 1
            await asyncio.sleep(0)
    return turns


async def test_many_connections_are_accepted_in_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "made", 0)
    listener = listening()
    clients = [socket.create_connection(listener.getsockname()) for _ in range(CONNECTIONS)]
    server = Acceptor(listener, CONNECTIONS, Peer, None)
    assert await until_made(CONNECTIONS) < CONNECTIONS / 4
    server.close()
    server.close()
    assert listener.fileno() == -1
    for client in clients:
        client.close()


async def test_processes_with_one_socket_share_a_burst_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "made", 0)
    shares = [0, 0, 0]

    def accepting(process: int) -> Peer:
        shares[process] += 1
        return Peer()

    listener = listening()
    clients = [socket.create_connection(listener.getsockname()) for _ in range(60)]
    servers = [
        Acceptor(listener.dup(), CONNECTIONS, functools.partial(accepting, process), None) for process in range(3)
    ]
    await until_made(60)
    assert max(shares) <= 30, shares
    for server in servers:
        server.close()
    for client in (listener, *clients):
        client.close()


async def test_accepting_pauses_while_there_are_no_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "made", 0)
    exhausted = Exhausted(listening())
    with socket.create_connection(exhausted._listener.getsockname()):
        server = Acceptor(exhausted, CONNECTIONS, Peer, None)  # type: ignore[arg-type]
        for _ in range(20):
            await asyncio.sleep(0)
        assert exhausted.attempts == 1
        exhausted.has_room = True
        await until_made(1)  # after PAUSE
        server.close()


async def test_a_few_uploads_start_in_each_turn() -> None:
    queue, started = UploadQueue(), []
    for number in range(2 * body_memory.PER_TURN + 1):
        queue.add(lambda number=number: started.append(number))  # type: ignore[misc]
    counts = []
    while queue:
        await asyncio.sleep(0)
        counts.append(len(started))
    assert counts == [body_memory.PER_TURN, 2 * body_memory.PER_TURN, 2 * body_memory.PER_TURN + 1]
    assert started == sorted(started)


async def connect(frontend: Frontend) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = frontend.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def test_a_complete_request_does_not_wait_for_uploads(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_memory, "PER_TURN", 0)  # no upload gets its turn
    connections = frontend.server.server_state.connections
    _, large = await connect(frontend)
    large.write(HEAD % 2**20 + b"x" * 4 * MAX_PIECE)
    await eventually(lambda: paused(connections))
    slow_reader, slow = await connect(frontend)
    slow.write(HEAD % len(BODY) + BODY[:5])
    await eventually(lambda: waiting(connections, 2))

    reader, writer = await connect(frontend)
    writer.write(HEAD % len(BODY) + BODY)
    async with asyncio.timeout(TIMEOUT):
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    assert await waiting(connections, 2)
    slow.write(BODY[5:])  # complete now
    async with asyncio.timeout(TIMEOUT):
        assert (await slow_reader.read()).startswith(b"HTTP/1.1 200 ")
    (left,) = connections
    assert isinstance(left, Connection)
    assert MAX_PIECE <= len(left.cycle.body) < 2 * MAX_PIECE
    monkeypatch.undo()  # its turn comes
    large.close()
    await frontend.idle()


async def paused(connections: Collection[Any]) -> bool:
    return any(each.flow is not None and each.flow.read_paused for each in connections)


async def waiting(connections: Collection[Any], count: int) -> bool:
    return sum(bool(each._waits) for each in connections) == count


async def test_a_large_body_comes_in_pieces(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    data_received = Connection.data_received

    def record(connection: Connection, data: bytes) -> None:
        sizes.append(len(data))
        data_received(connection, data)

    monkeypatch.setattr(Connection, "data_received", record)
    async with frontend.http() as client:
        answer = await client.post("/v1/completions", json={"prompt": "x" * 2**20})
    assert answer.status_code == 400
    assert sum(sizes) > 2**20
    assert max(sizes) <= MAX_PIECE


async def test_a_refused_upload_keeps_no_body(frontend: Frontend) -> None:
    reader, writer = await connect(frontend)
    writer.write(POST_JSON.replace(b"json", b"text") + b"Content-Length: 100000\r\n\r\n" + b"x" * MAX_PIECE)
    async with asyncio.timeout(TIMEOUT):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 415 ")
    (connection,) = frontend.server.server_state.connections
    assert isinstance(connection, Connection)
    assert len(connection.cycle.body) == 0
    writer.close()
