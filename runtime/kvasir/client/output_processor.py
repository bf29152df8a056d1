"""Turns the outputs of engines into text and hands them to the consumers; called by AsyncLLM on the event loop.

A step of a large batch brings hundreds of outputs at once. The processor takes them in slices, so that the event
loop can serve its other callbacks between two slices: the consumers of the first slice write while the next ones
wait.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from kvasir.client.journal import Journal, LiveRequest, RequestState
from kvasir.client.request_errors import RequestFailed, failure_of
from kvasir.client.request_observer import RequestObserver, Trace
from kvasir.client.text.logprob_lists import first_of
from kvasir.client.text.stop_strings import StopSearch
from kvasir.link.protocol import FinishReason, RefusalKind, RequestOutput

log = logging.getLogger(__name__)

SLICE: Final = 128
"""Outputs handled before the event loop gets its turn: around a millisecond."""


@dataclass(frozen=True, slots=True)
class AbortRequests:
    """These requests have ended here; their engine still works on them."""

    engine: str
    request_ids: list[str]


@dataclass(frozen=True, slots=True)
class DistrustEngine:
    """The engine sent outputs that do not fit its earlier ones. These outputs and all later ones are dropped."""

    engine: str
    reason: str


@dataclass(slots=True)
class _Batch:
    engine: str
    outputs: list[RequestOutput]
    next: int = 0


class OutputProcessor:
    """Ends requests, in success and in failure, and is the only one to append to their tokens.

    `actions` holds what the owner must do about engines after `receive` and `work`, in order. The tokens that live
    requests can generate bound the backlog.
    """

    def __init__(self, journal: Journal, observer: RequestObserver, eos_token_ids: tuple[int, ...]) -> None:
        self.actions: deque[AbortRequests | DistrustEngine] = deque()
        self._journal = journal
        self._observer = observer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._stopped: list[str] = []
        """Requests that ended here in the present slice and that their engine still works on."""
        self._backlog: deque[_Batch] = deque()

    @property
    def has_backlog(self) -> bool:
        """Outputs wait: the owner calls `work` again in the next turn of the event loop."""
        return bool(self._backlog)

    def receive(self, engine: str, outputs: list[RequestOutput]) -> None:
        """Take the outputs of one step: a slice now if nothing waits, the rest in order by `work`."""
        self._backlog.append(_Batch(engine, outputs))
        if len(self._backlog) == 1:
            self.work()

    def work(self) -> None:
        """Take the next slice of the backlog."""
        left = SLICE
        while self._backlog and left > 0:
            batch = self._backlog[0]
            count = min(left, len(batch.outputs) - batch.next)
            first, batch.next = batch.next, batch.next + count
            left -= count
            if batch.next == len(batch.outputs):
                self._backlog.popleft()
            self._take(batch, first, count)

    def flush(self, engine: str) -> None:
        """Take at once what waits of this engine. It is lost: its outputs still count, and no action follows."""
        mine = [batch for batch in self._backlog if batch.engine == engine]
        self._forget(engine)
        for batch in mine:
            if not self._take(batch, batch.next, len(batch.outputs) - batch.next):
                break
        self.actions = deque(action for action in self.actions if action.engine != engine)

    def fail(self, request: LiveRequest, message: str, refusal: RefusalKind | None = None) -> None:
        """End the request with RequestFailed, or with the error for a refusal, unless it has ended."""
        if self.end(request, FinishReason.ERROR):
            request.collector.fail(failure_of(message, refusal))

    def end(self, request: LiveRequest, reason: FinishReason) -> bool:
        """Record that the request is finished. Returns False if no engine worked on it."""
        if request.state is not RequestState.RUNNING:
            return False
        self._journal.finish(request)
        trace = request.trace
        trace.finished, trace.reason = time.perf_counter(), reason
        self._observer.request_finished(trace)
        return True

    def _take(self, batch: _Batch, first: int, count: int) -> bool:
        """Handle `count` outputs of the batch from `first` on. Returns False if the engine is distrusted."""
        now = time.perf_counter()
        trusted = True
        for output in batch.outputs[first : first + count]:
            request = self._journal.get(output.request_id)
            # The engine sent it before it read the Abort, or for an earlier attempt.
            if request is None or request.state is not RequestState.RUNNING:
                continue
            if request.engine != batch.engine or request.attempt != output.attempt:
                continue
            if output.position != len(request.output_token_ids):
                self._distrust(batch.engine, request, output)
                trusted = False
                break
            try:
                self._accept(request, output, now)
            except Exception:  # a defect of ours fails this request and no other
                log.exception("request %s: its output could not be handled", request.request_id)
                self.end(request, FinishReason.ERROR)
                request.collector.fail(RequestFailed("the server could not handle the output of the engine"))
                self._stopped.append(request.request_id)
        if self._stopped:
            stopped, self._stopped = self._stopped, []
            self.actions.append(AbortRequests(batch.engine, stopped))
        return trusted

    def _distrust(self, engine: str, request: LiveRequest, output: RequestOutput) -> None:
        self._forget(engine)
        reason = (
            f"it sent tokens from position {output.position} of request {request.request_id}, of which "
            f"{len(request.output_token_ids)} tokens are known"
        )
        self.actions.append(DistrustEngine(engine, reason))

    def _forget(self, engine: str) -> None:
        self._backlog = deque(batch for batch in self._backlog if batch.engine != engine)

    def _accept(self, request: LiveRequest, output: RequestOutput, now: float) -> None:
        if output.num_cached_tokens is not None:
            request.trace.cached_tokens = output.num_cached_tokens
            request.trace.queue_seconds = output.queue_seconds
        token_ids, reason, stop_reason = output.token_ids, output.finish_reason, output.stop_token_id
        if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
            message = output.error or f"the engine {request.engine} gave up the request: try again"
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
        self._journal.append(request, token_ids)
        if output.logprobs is not None or output.prompt_logprobs is not None:
            self._pass_logprobs(request, output, len(token_ids))
        if reason is not None:
            self.end(request, reason)
            if output.finish_reason is None:
                self._stopped.append(request.request_id)
        request.collector.put(text, token_ids, reason, stop_reason if stop is None else stop)

    def _with_text(self, request: LiveRequest, output: RequestOutput) -> list[int]:
        """Return the tokens without the one that ended the request, unless the request includes that in its
        text."""
        token_ids = output.token_ids
        if output.finish_reason is FinishReason.STOP and token_ids and not request.include_stop:
            last = token_ids[-1]
            if last == output.stop_token_id or last in self._eos_token_ids:
                return token_ids[:-1]
        return token_ids

    def _search(self, request: LiveRequest, stops: StopSearch, output: RequestOutput) -> tuple[str, int]:
        """Return the text that is certain and the number of its tokens: fewer than received if a stop string ends
        it."""
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
