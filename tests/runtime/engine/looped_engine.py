"""A busy loop that runs on its own thread, over a fake link and the fake executor."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kvasir.engine.handover.hand_over import BlockExchange, HandOver
from kvasir.engine.health.engine_status import EngineStatus
from kvasir.engine.inbox import Inbox
from kvasir.engine.loop import EngineLoop
from kvasir.engine.waves import Independent, Waves
from kvasir.link.engine_end.engine_link import Received
from kvasir.link.protocol import Abort, AddRequest, Call, Outputs, RequestOutput, StartWave
from kvasir_contract.phases import Phase
from runtime.engine.core_harness import FRONTEND, CoreHarness
from runtime.engine.fake_link import FakeLink

PROMPT = [5, 6, 7]
WAIT = 60.0


class Engine:
    """A loop that runs on its own thread until it is drained."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        *,
        drain_timeout: float = 30,
        drain_settle: float = 0.05,
        waves: Callable[[Inbox], Waves] = lambda inbox: Independent(),
        exchange: BlockExchange | None = None,
        **core: Any,
    ) -> None:
        """`exchange`: of hand-overs to other engines; None: there are none."""
        hand_over = HandOver()
        self.harness = CoreHarness(gates=[*core.pop("gates", []), hand_over], **core)
        if exchange is not None:
            hand_over.open(self.harness.scheduler, exchange)
        self.link = FakeLink()
        self.inbox = Inbox()
        self.inbox.open(self.harness.core.ingest)
        self.status = EngineStatus("engine-0-test", 0, heartbeat_timeout=10)
        self.status.enter(Phase.READY)
        self.loop = EngineLoop(
            self.harness.core,
            self.link,
            self.inbox,
            self.status,
            drain_timeout,
            drain_settle,
            waves(self.inbox),
            hand_over,
        )
        self.ended: Future[None] = pool.submit(self.loop.run)

    def tell(self, message: AddRequest | Abort | Call | StartWave, frontend: str = FRONTEND) -> None:
        self.inbox.put(Received(frontend, message))
        self.inbox.flush()

    def outputs(self) -> tuple[str, Outputs]:
        frontend, message = self.link.sent.get(timeout=WAIT)
        assert isinstance(message, Outputs), message
        return frontend, message

    def answer(self, request_id: str) -> tuple[list[int], RequestOutput]:
        token_ids: list[int] = []
        while True:
            for output in self.outputs()[1].outputs:
                if output.request_id == request_id:
                    token_ids += output.token_ids
                    if output.finish_reason is not None:
                        return token_ids, output


def held_step(engine: Engine) -> tuple[threading.Event, threading.Event]:
    """Make the executor wait in its next step: events for "it has begun" and "go on"."""
    begun, go_on = threading.Event(), threading.Event()

    def held() -> None:
        begun.set()
        assert go_on.wait(WAIT)

    engine.harness.executor.before_step = held
    return begun, go_on
