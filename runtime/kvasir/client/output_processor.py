"""Turns the outputs of engines into text and hands them to the consumers; called by AsyncLLM on the event loop.

A step of a large batch brings hundreds of outputs at once. They are taken in slices, and between two slices the
loop serves its other callbacks: the consumers of the first slice write while the next ones wait.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir.client.journal import Journal, LiveRequest
from kvasir.client.request_errors import RequestFailed, failure_of
from kvasir.client.request_observer import RequestObserver, Trace
from kvasir.client.text.logprob_lists import first_of
from kvasir.client.text.stop_strings import StopSearch
from kvasir.link.protocol import FinishReason, RefusalKind, RequestOutput

log = logging.getLogger(__name__)

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
    returns, the engine's requests have been failed. `abort(engine, request_ids)` tells it to forget requests that
    have ended here. The backlog is bounded by what live requests can generate.
    """

    def __init__(
        self,
        journal: Journal,
        observer: RequestObserver,
        eos_token_ids: tuple[int, ...],
        distrust: Callable[[str, str], None],
        abort: Callable[[str, list[str]], object],
    ) -> None:
        self._journal = journal
        self._observer = observer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._distrust = distrust
        self._abort = abort
        self._stopped: list[str] = []
        """Requests that a stop string has ended here and that their engine still works on."""
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

    def fail(self, request: LiveRequest, message: str, refusal: RefusalKind | None = None) -> None:
        """End the request with RequestFailed, or with the error for a refusal, unless it has ended."""
        if self.end(request, FinishReason.ERROR):
            request.collector.fail(failure_of(message, refusal))

    def end(self, request: LiveRequest, reason: FinishReason) -> bool:
        """No engine works on the request any more. False: none did, it has ended before."""
        if request.engine is None:
            return False
        self._journal.release(request)
        trace = request.trace
        trace.finished, trace.reason = time.perf_counter(), reason
        self._observer.request_finished(trace)
        return True

    def _work(self) -> None:
        left = SLICE
        try:
            while self._backlog and left > 0:
                batch = self._backlog[0]
                left -= self._take(batch, left)
                # `distrust` may have flushed the batch away.
                if self._backlog and self._backlog[0] is batch and batch.next >= len(batch.outputs):
                    self._backlog.popleft()
        finally:  # whatever goes wrong, the outputs behind it come to their requests
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
            try:
                self._accept(request, output, now)
            except Exception:  # a defect of ours costs this request, and no other
                log.exception("request %s: its output could not be handled", request.request_id)
                self.end(request, FinishReason.ERROR)
                request.collector.fail(RequestFailed("the server could not handle the output of the engine"))
                self._stopped.append(request.request_id)
        if self._stopped:
            stopped, self._stopped = self._stopped, []
            self._abort(batch.engine, stopped)
        return len(outputs)

    def _accept(self, request: LiveRequest, output: RequestOutput, now: float) -> None:
        if output.num_cached_tokens is not None:
            request.trace.cached_tokens = output.num_cached_tokens
            request.trace.queue_seconds = output.queue_seconds
        token_ids, reason, stop_reason = output.token_ids, output.finish_reason, output.stop_token_id
        if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
            engine = request.engine
            message = output.error or f"the engine {engine} gave up the request: try again"
            self.fail(request, message, output.refusal)
            return
        stop: str | None = None
        if request.stops is None:
            text = request.text.push(self._with_text(request, output))
            if reason is not None:
                text += request.text.finish()
        else:
            text, count = self._search(request, request.stops, output)
            if (stop := request.stops.found) is not None:
                token_ids, reason = token_ids[:count], FinishReason.STOP
        if token_ids:
            self._observe_tokens(request.trace, len(token_ids), now)
        request.output_token_ids += token_ids
        if output.logprobs is not None or output.prompt_logprobs is not None:
            self._pass_logprobs(request, output, len(token_ids))
        if reason is not None:
            self.end(request, reason)
            if output.finish_reason is None:
                self._stopped.append(request.request_id)
        request.collector.put(text, token_ids, reason, stop_reason if stop is None else stop)

    def _with_text(self, request: LiveRequest, output: RequestOutput) -> list[int]:
        """The tokens less the one that ended the request, which is text only where the request wants it so."""
        token_ids = output.token_ids
        if output.finish_reason is FinishReason.STOP and token_ids and not request.include_stop:
            last = token_ids[-1]
            if last == output.stop_token_id or last in self._eos_token_ids:
                return token_ids[:-1]
        return token_ids

    def _search(self, request: LiveRequest, stops: StopSearch, output: RequestOutput) -> tuple[str, int]:
        """The text that can be told, and the tokens that it took: fewer than came where a stop string ends it."""
        known, least = len(request.output_token_ids), request.params.min_tokens
        text = ""
        for count, token_id in enumerate(self._with_text(request, output), 1):
            text += stops.push(request.text.push((token_id,)), may_end=known + count > least)
            if stops.found is not None:
                return text, count
        count = len(output.token_ids)
        if output.finish_reason is not None:
            text += stops.push(request.text.finish(), may_end=known + count > least) + stops.finish()
        return text, count

    def _pass_logprobs(self, request: LiveRequest, output: RequestOutput, count: int) -> None:
        """Of the tokens that the answer has."""
        logprobs = output.logprobs
        if logprobs is not None and count < len(output.token_ids):
            logprobs = first_of(logprobs, count)
        request.collector.put_logprobs(logprobs, output.prompt_logprobs)

    def _observe_tokens(self, trace: Trace, count: int, now: float) -> None:
        if trace.first_token is None:
            trace.first_token = now
        seconds = None if trace.last_token is None else now - trace.last_token
        trace.output_tokens += count
        trace.last_token = now
        self._observer.tokens_received(trace, count, seconds)
