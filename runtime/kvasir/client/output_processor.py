"""Turns the outputs of engines into text and hands them to the consumers; called by AsyncLLM on the event loop.

A step of a large batch brings hundreds of outputs at once. They are taken in slices, and between two slices the
loop serves its other callbacks: the consumers of the first slice write while the next ones wait.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir.client.errors import RequestFailed
from kvasir.client.journal import Journal, LiveRequest
from kvasir.client.observer import RequestObserver
from kvasir.protocol import FinishReason, RequestOutput

SLICE: Final = 128
"""Outputs handled before the event loop gets its turn: around a millisecond."""


@dataclass(slots=True)
class _Batch:
    engine: str
    outputs: list[RequestOutput]
    next: int = 0


class OutputProcessor:
    """Ends requests, in success and in failure, and is the only one to append to their tokens.

    `distrust(engine, reason)` is called for an engine whose outputs do not fit what it sent before; before it
    returns, the engine's requests have been failed. The backlog is bounded by what live requests can generate.
    """

    def __init__(
        self,
        journal: Journal,
        observer: RequestObserver,
        eos_token_ids: tuple[int, ...],
        distrust: Callable[[str, str], None],
    ) -> None:
        self._journal = journal
        self._observer = observer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._distrust = distrust
        self._backlog: deque[_Batch] = deque()
        self._scheduled = False

    def receive(self, engine: str, outputs: list[RequestOutput]) -> None:
        """Take the outputs of one step: now, or after those that wait already."""
        self._backlog.append(_Batch(engine, outputs))
        if not self._scheduled:
            self._work()

    def flush(self, engine: str) -> None:
        """Take at once what this engine sent: it is lost, and what it did before still counts."""
        mine = [batch for batch in self._backlog if batch.engine == engine]
        self._backlog = deque(batch for batch in self._backlog if batch.engine != engine)
        for batch in mine:
            self._take(batch, len(batch.outputs))

    def fail(self, request: LiveRequest, message: str) -> None:
        """End the request with RequestFailed, unless it has ended."""
        if self.end(request, FinishReason.ERROR):
            request.collector.fail(RequestFailed(message))

    def end(self, request: LiveRequest, reason: FinishReason) -> bool:
        """No engine works on the request any more. False: none did, it has ended before."""
        if request.engine is None:
            return False
        self._journal.release(request)
        self._observer.request_finished(
            reason,
            time.perf_counter() - request.started,
            len(request.prompt_token_ids),
            len(request.output_token_ids),
        )
        return True

    def _work(self) -> None:
        left = SLICE
        while self._backlog and left > 0:
            batch = self._backlog[0]
            left -= self._take(batch, left)
            # `distrust` may have flushed the batch away.
            if self._backlog and self._backlog[0] is batch and batch.next >= len(batch.outputs):
                self._backlog.popleft()
        self._scheduled = bool(self._backlog)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._work)

    def _take(self, batch: _Batch, count: int) -> int:
        """Handle up to `count` more outputs of the batch; returns how many it were."""
        now = time.perf_counter()
        outputs = batch.outputs[batch.next : batch.next + count]
        batch.next += len(outputs)
        for output in outputs:
            request = self._journal.get(output.request_id)
            # Of a request that was aborted, or of an attempt that is over: the engine did not know yet.
            if request is None or request.engine != batch.engine or request.attempt != output.attempt:
                continue
            if output.position != len(request.output_token_ids):
                self._distrust(
                    batch.engine,
                    f"it sent tokens from position {output.position} of request {request.request_id}, of which "
                    f"{len(request.output_token_ids)} tokens are known",
                )
                continue
            self._accept(request, output, now)
        return len(outputs)

    def _accept(self, request: LiveRequest, output: RequestOutput, now: float) -> None:
        if output.token_ids:
            self._observe_tokens(request, len(output.token_ids), now)
        request.output_token_ids += output.token_ids
        reason = output.finish_reason
        if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
            engine = request.engine
            self.fail(request, output.error or f"the engine {engine} gave up the request: try again")
            return
        text = request.text.push(self._with_text(output))
        if reason is not None:
            text += request.text.finish()
            self.end(request, reason)
        request.collector.put(text, output.token_ids, reason, output.stop_token_id)

    def _with_text(self, output: RequestOutput) -> list[int]:
        """The tokens less the one that ended the request: a stop token is not part of the text."""
        token_ids = output.token_ids
        if output.finish_reason is FinishReason.STOP and token_ids:
            last = token_ids[-1]
            if last == output.stop_token_id or last in self._eos_token_ids:
                return token_ids[:-1]
        return token_ids

    def _observe_tokens(self, request: LiveRequest, count: int, now: float) -> None:
        if request.last_tokens is None:
            self._observer.first_token(now - request.started)
            self._observer.tokens_received(count, None)
        else:
            self._observer.tokens_received(count, now - request.last_tokens)
        request.last_tokens = now
