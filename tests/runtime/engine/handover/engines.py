"""Engines that hand KV blocks over: a core harness with an exchange, stepped by the test."""

import queue
from typing import Any

from kvasir.engine.handover.block_fetch import FetchLimits
from kvasir.engine.handover.exchange import Exchange
from kvasir.engine.handover.hand_over import HandOver
from kvasir.engine.handover.messages import FetchEnded, HandOverEvent
from runtime.engine.core_harness import CoreHarness
from runtime.engine.handover.sides import PATIENCE, PATIENT


class HandingEngine:
    """Its events wait in `events` until the test handles them."""

    def __init__(self, *, kv_class: str = "class", limits: FetchLimits = PATIENT, **core: Any) -> None:
        self.hand_over = HandOver()
        self.harness = CoreHarness(gates=[self.hand_over], **core)
        self.events: queue.SimpleQueue[HandOverEvent] = queue.SimpleQueue()
        self.memory = self.harness.executor.block_bytes()
        self.exchange = Exchange(self.memory, kv_class, None, self.events.put, limits=limits)
        self.address = ""
        self.hand_over.open(self.harness.scheduler, self.exchange)

    def start(self, address: str = "") -> None:
        self.address = self.exchange.listen(address) if address else ""
        self.exchange.start()

    def handle(self) -> HandOverEvent:
        """Handle the next event, as the loop does between steps."""
        event = self.events.get(timeout=PATIENCE)
        self.hand_over.handle(event)
        return event

    def step(self) -> None:
        self.harness.step()
        self.hand_over.after_step()

    def run(self) -> None:
        """Step until there is nothing to do."""
        while self.harness.core.has_work:
            self.step()
        self.harness.core.check_idle()


def serve_until(giver: HandingEngine, taker: HandingEngine) -> FetchEnded:
    """Handle the events of both engines until a fetch of the taker has ended."""
    while True:
        for engine in (giver, taker):
            try:
                event = engine.events.get(timeout=0.01)
            except queue.Empty:
                continue
            engine.hand_over.handle(event)
            if isinstance(event, FetchEnded):
                return event
