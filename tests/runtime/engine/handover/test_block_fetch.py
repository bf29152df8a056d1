"""A fetch from an address to which packets are dropped, as by a network policy."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from kvasir.engine.handover.block_fetch import FetchLimits
from runtime.engine.handover.sides import PATIENCE, Side, block_hash


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that does not answer: its queue of connections is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(listener.getsockname())
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_that_does_not_answer_is_given_up(silent: str) -> None:
    """Without the patience that an engine with a connection gets."""
    side = Side(1, limits=FetchLimits(2 * PATIENCE, 2 * PATIENCE, connect_seconds=0.2))
    side.exchange.start()
    with contextlib.closing(side.exchange):
        ended = side.fetch(silent, [block_hash(1)], [1]).result(PATIENCE)
    assert ended.num_blocks == 0
    assert ended.problem.startswith(f"there is no connection to {silent}: ")
