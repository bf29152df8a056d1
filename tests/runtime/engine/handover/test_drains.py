import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvasir.engine import drain
from kvasir.engine.handover.messages import PinReleased, PinWanted
from kvasir.link.protocol import Abort
from runtime.engine.core_harness import add_request
from runtime.engine.looped_engine import PROMPT, WAIT, Engine


class Pins:
    """An exchange that keeps the pins."""

    def __init__(self) -> None:
        self.pins: queue.SimpleQueue[tuple[int, list[int]]] = queue.SimpleQueue()

    def pinned(self, session: int, block_ids: list[int]) -> None:
        self.pins.put((session, block_ids))

    def fetch(self, number: int, source: str, hashes: list[bytes], block_ids: list[int]) -> None:
        raise AssertionError("no request has a source")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def test_a_draining_engine_waits_for_the_reader_of_its_blocks(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "LINGER_SECONDS", WAIT)
    exchange = Pins()
    engine = Engine(pool, drain_timeout=2 * WAIT, drain_settle=0.01, exchange=exchange)
    engine.tell(add_request("r", PROMPT, 900, ignore_eos=True))
    engine.outputs()
    engine.loop.drain()
    assert engine.link.draining.wait(WAIT)
    engine.tell(Abort(["r"]))
    engine.inbox.put_hand_over(PinWanted(1, [b"unknown"]))
    assert exchange.pins.get(timeout=WAIT) == (1, [])
    assert not engine.ended.done()
    monkeypatch.setattr(drain, "LINGER_SECONDS", 0.0)
    engine.inbox.put_hand_over(PinReleased(1))
    engine.ended.result(WAIT)


def test_the_drain_timeout_ends_the_wait(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "LINGER_SECONDS", WAIT)
    exchange = Pins()
    engine = Engine(pool, drain_timeout=0.3, drain_settle=0.01, exchange=exchange)
    engine.inbox.put_hand_over(PinWanted(1, []))
    exchange.pins.get(timeout=WAIT)
    engine.loop.drain()
    engine.ended.result(WAIT)


def test_an_engine_without_readers_ends_at_once(pool: ThreadPoolExecutor) -> None:
    engine = Engine(pool, drain_timeout=2 * WAIT, drain_settle=0.01, exchange=Pins())
    engine.loop.drain()
    engine.ended.result(WAIT)
