"""A fake link for the engine's loop: an inbox, and the messages sent."""

import queue
import threading

from kvasir.link.protocol import AdaptersHeld, CacheEvents, EngineStats, Outputs, Result


class FakeLink:
    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[tuple[str, Outputs | CacheEvents | Result]] = queue.SimpleQueue()
        self.adapters: list[AdaptersHeld] = []
        self.loads: list[tuple[EngineStats, bool]] = []
        self.draining = threading.Event()
        self.idle = threading.Event()

    def send(self, frontend: str, message: Outputs | CacheEvents | Result) -> None:
        self.sent.put((frontend, message))

    def show_adapters(self, held: AdaptersHeld) -> None:
        self.adapters.append(held)

    def set_load(self, stats: EngineStats, busy: bool) -> None:
        self.loads.append((stats, busy))
        if busy:
            self.idle.clear()
        else:
            self.idle.set()

    def drain(self, seconds: float) -> None:
        self.draining.set()
