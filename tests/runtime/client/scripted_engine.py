"""An engine on the real link, in the process of the test, which decides every message."""

import asyncio
import queue

from kvasir.config.process_settings import LinkConfig
from kvasir.hub.model_info import ModelInfo
from kvasir.link.engine_end.engine_link import (
    DrainSettled,
    EngineIdentity,
    FrontendLost,
    Received,
    new_incarnation,
)
from kvasir.link.protocol import (
    Abort,
    AddRequest,
    Call,
    Dead,
    EngineStats,
    FailedStep,
    FinishReason,
    Goodbye,
    Outputs,
    Ready,
    RefusalKind,
    RequestOutput,
    StartWave,
)
from kvasir_contract.phases import Phase
from runtime.link.queued_link import QueuedLink

READY = Ready(block_size=16, num_blocks=64, max_model_len=128, max_num_seqs=8)
PATIENCE = 60.0
"""Seconds after which a message that does not come fails the test."""


class ScriptedEngine:
    """Reads the link's inbox when the test asks for a message; answers nothing by itself."""

    def __init__(self, address: str, model: ModelInfo, *, rank: int = 0, crashed: FailedStep | None = None) -> None:
        self.identity = EngineIdentity(
            incarnation=new_incarnation(rank),
            rank=rank,
            node="test",
            service="",
            version="0",
            fingerprint=model.fingerprint,
            tokenizer_hash=model.tokenizer_hash,
        )
        self.link = QueuedLink(LinkConfig(link=(address,)), self.identity, crashed=crashed)
        self.frontend = ""
        self._steps = 0

    def start(self, ready: Ready | None = READY) -> None:
        self.link.start()
        if ready is not None:
            self.link.set_phase(Phase.READY)
            self.link.announce_ready(ready)

    def close(self) -> None:
        self.link.close(Goodbye())

    def die(self, reason: str, crashed: FailedStep | None = None) -> None:
        """`crashed`: the step in which it failed; None: in no step."""
        self.link.close(Dead(reason, crashed or FailedStep(self.identity.incarnation)))

    async def request(self) -> AddRequest:
        """The next message, which must be a request."""
        message = await self.message()
        assert isinstance(message, AddRequest), message
        return message

    async def abort(self) -> list[str]:
        """The next message, which must be an Abort."""
        message = await self.message()
        assert isinstance(message, Abort), message
        return message.request_ids

    async def message(self) -> AddRequest | Abort | StartWave:
        received = await asyncio.to_thread(self.link.inbox.get, timeout=PATIENCE)
        if isinstance(received, DrainSettled):
            return await self.message()
        assert isinstance(received, Received), received
        self.frontend = received.frontend
        assert not isinstance(received.message, Call), received
        return received.message

    def messages(self) -> list[AddRequest | Abort | StartWave]:
        """Return the messages so far."""
        messages: list[AddRequest | Abort | StartWave] = []
        while True:
            try:
                received = self.link.inbox.get_nowait()
            except queue.Empty:
                return messages
            if isinstance(received, Received):
                self.frontend = received.frontend
                assert not isinstance(received.message, Call), received
                messages.append(received.message)
            else:
                assert received is None or isinstance(received, DrainSettled | FrontendLost)

    def answer(
        self,
        request: AddRequest,
        position: int,
        token_ids: list[int],
        finish_reason: FinishReason | None = None,
        *,
        attempt: int | None = None,
        error: str = "",
        refusal: RefusalKind | None = None,
    ) -> None:
        self.step(
            [
                RequestOutput(
                    request.request_id,
                    request.attempt if attempt is None else attempt,
                    position,
                    token_ids,
                    finish_reason,
                    error=error,
                    refusal=refusal,
                )
            ]
        )

    def step(self, outputs: list[RequestOutput], waiting: int = 0) -> None:
        """`waiting`: requests that the engine reports as queued."""
        self._steps += 1
        self.link.send(self.frontend, Outputs(outputs, EngineStats(waiting, 0, 0, self._steps)))
