"""Connections of an engine are shut down when it is killed, and only then."""

import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.wire.death_watch import DeathWatch
from runtime.link.peers import PATIENCE, Transport, frontend


@pytest.fixture
def watch() -> Iterator[DeathWatch]:
    watch = DeathWatch()
    yield watch
    watch.close()


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The engine's end and the frontend's end."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with ours, theirs:
        yield ours, theirs


async def test_the_loss_is_noticed_before_the_connection_is_closed(transport: Transport) -> None:
    address, frontend_keys, engine_keys = transport
    script = str(Path(__file__).with_name("watched_engine_process.py"))
    async with frontend(address, frontend_keys, silence=10 * PATIENCE) as f:
        engine = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, script, f.link.addresses, "victim", str(engine_keys or "")], stdin=subprocess.PIPE
        )
        with engine:
            try:
                await f.ready("victim")
                await f.ask("victim")
                # From here on its child keeps the sockets open. In reality, the memory that is not freed yet does.
                engine.kill()
                assert await f.lost("victim") == "its connection broke"
            finally:
                engine.kill()


async def test_an_engine_goes_on_without_its_connection_keeper(transport: Transport) -> None:
    address, frontend_keys, engine_keys = transport
    script = str(Path(__file__).with_name("watched_engine_process.py"))
    async with frontend(address, frontend_keys) as f:
        engine = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, script, f.link.addresses, "alive", str(engine_keys or "")], stdin=subprocess.PIPE
        )
        with engine:
            try:
                await f.ready("alive")
                await f.ask("alive")
                for pid in keepers(engine.pid):
                    os.kill(pid, 9)
                    await_end(pid)
                await f.ask("alive", "again")
                assert not f.seen.lost
            finally:
                engine.kill()


def test_a_released_connection_ends_when_the_engine_closes_it(
    watch: DeathWatch, connection: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = connection
    watch.hold(1, ours.fileno())
    ours.send(b"alive")
    assert theirs.recv(8) == b"alive"
    ours.close()
    watch.release(1)
    assert theirs.recv(8) == b""


def test_a_new_connection_replaces_the_old_one_of_its_number(
    watch: DeathWatch, connection: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = connection
    other, _ = others = socket.socketpair()
    watch.hold(1, ours.fileno())
    watch.hold(1, other.fileno())
    ours.close()
    assert theirs.recv(8) == b""
    for end in others:
        end.close()


def test_closing_ends_the_process_and_the_duplicates(
    watch: DeathWatch, connection: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = connection
    watch.hold(1, ours.fileno())
    ours.close()
    watch.close()
    assert theirs.recv(8) == b""
    watch.hold(2, theirs.fileno())  # does nothing


def test_a_connection_that_is_closed_already_is_not_held(
    watch: DeathWatch, connection: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    gone = os.dup(0)
    os.close(gone)
    watch.hold(1, gone)
    ours, theirs = connection
    watch.hold(2, ours.fileno())
    ours.close()
    watch.release(2)
    assert theirs.recv(8) == b""
    assert not caplog.records


def test_without_the_process_connections_stay_and_it_warns(
    watch: DeathWatch, connection: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = connection
    for pid in keepers(os.getpid()):
        os.kill(pid, 9)
        await_end(pid)
    with caplog.at_level(logging.WARNING):
        watch.hold(1, ours.fileno())
        watch.hold(2, ours.fileno())
    assert len(caplog.records) == 1
    assert "late" in caplog.text
    ours.send(b"alive")
    assert theirs.recv(8) == b"alive"


def keepers(pid: int) -> list[int]:
    """Return the connection keepers among the children of a process. Linux shows the name of a program late."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        children = [
            child
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        found = [child for child in children if "connection_keeper" in Path(f"/proc/{child}/cmdline").read_text()]
        if found:
            return [int(child) for child in found]
    raise AssertionError("there is no connection keeper")


def await_end(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], PATIENCE)[0]
    os.close(descriptor)
