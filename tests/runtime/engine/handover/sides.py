"""The two ends of a hand-over without an engine: memories of random blocks, and a stand-in for the step loop."""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from kvasir.engine.handover.block_fetch import FetchLimits
from kvasir.engine.handover.exchange import Exchange
from kvasir.engine.handover.messages import FetchEnded, HandOverEvent, PinReleased, PinWanted
from kvasir.request.hashing import HASH_BYTES
from kvasir.wire.keys import LinkKeys
from kvasir.worker.kv_memory.block_bytes import HostBlockBytes

PATIENCE = 60.0
NUM_BLOCKS = 1200
PATIENT = FetchLimits(PATIENCE, PATIENCE, bytes_per_second=1.0, connect_seconds=PATIENCE)
"""Limits that a busy machine does not reach."""


def block_hash(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "little")


class Side:
    """An exchange over two memories. Its blocks have random content until they are written."""

    def __init__(
        self,
        seed: int,
        *,
        block_bytes: int = 64,
        num_blocks: int = NUM_BLOCKS,
        kv_class: str = "class",
        keys: LinkKeys | None = None,
        limits: FetchLimits = PATIENT,
        session_seconds: float = PATIENCE,
        pins: bool = True,
    ) -> None:
        """`pins`: answer PinWanted at once; otherwise the test does."""
        random = np.random.default_rng(seed)
        shape = (num_blocks + 1, block_bytes // 2)
        self.memory = HostBlockBytes([random.integers(0, 256, shape, np.uint8) for _ in range(2)], "test")
        self.cached: dict[bytes, int] = {}
        self.pins: dict[int, list[int]] = {}
        self.wanted: queue.SimpleQueue[PinWanted] = queue.SimpleQueue()
        self.no_pins = threading.Event()
        self._pins_at_once = pins
        self._ended: dict[int, Future[FetchEnded]] = {}
        self.exchange = Exchange(
            self.memory, kv_class, keys, self.on_event, limits=limits, session_seconds=session_seconds
        )

    def on_event(self, event: HandOverEvent) -> None:
        match event:
            case PinWanted():
                self.wanted.put(event)
                if self._pins_at_once:
                    self.pin(event)
            case PinReleased(session):
                self.pins.pop(session, None)
                self.no_pins.set()
            case FetchEnded(fetch):
                self._ended[fetch].set_result(event)

    def pin(self, event: PinWanted) -> None:
        found = []
        for each in event.hashes:
            if each not in self.cached:
                break
            found.append(self.cached[each])
        self.no_pins.clear()
        self.pins[event.session] = found
        self.exchange.pinned(event.session, found)

    def fetch(
        self, source: str, hashes: Sequence[bytes], block_ids: Sequence[int], number: int = 1
    ) -> "Future[FetchEnded]":
        self._ended[number] = Future()
        self.exchange.fetch(number, source, hashes, block_ids)
        return self._ended[number]
