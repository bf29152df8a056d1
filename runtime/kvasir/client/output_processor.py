"""The output processor: turns the outputs of engines into text for readers.

It works in slices, so that the first readers of a large batch need not wait for the whole batch.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest, RequestState
from kvasir.client.request_errors import RequestFailed, failure_of
from kvasir.client.request_observer import RequestObserver, Trace
from kvasir.client.text.logprob_lists import first_of
from kvasir.client.text.stop_strings import StopSearch
from kvasir.link.protocol import FinishReason, RefusalKind, RequestOutput, RequestProgress

log = logging.getLogger(__name__)

# outputs per turn of the event loop: about a millisecond
SLICE: Final = 128

# kinds with which a request may succeed in another engine, or later
_PASSING: Final = (
    RefusalKind.OVERLOADED,
    RefusalKind.UNAVAILABLE,
    RefusalKind.ADAPTER_UNFIT,
    RefusalKind.ADAPTER_UNREAD,
)


@dataclass(frozen=True, slots=True)
class AbortRequests:
    """Requests that have ended here, but not in their engine."""

    engine: str
    request_ids: list[str]


@dataclass(frozen=True, slots=True)
class DistrustEngine:
    """The engine's outputs do not follow its earlier ones."""

    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class TryNextEngine:
    engine: str
    request: LiveRequest
    error: str
    refusal: RefusalKind


@dataclass(slots=True)
class _Batch:
    engine: str
    outputs: list[RequestOutput]
    next: int = 0


class OutputProcessor:
    """Ends requests, and appends their tokens.

    The owner must do the `actions` after `receive` and `work`, and call `work` in later turns while `has_backlog`.
    """

    def __init__(
        self,
        journal: Journal,
        observer: RequestObserver,
        eos_token_ids: tuple[int, ...],
        begun: Callable[[LiveRequest, RequestOutput], None] = lambda request, output: None,
    ) -> None:
        """`begun` gets the first output of each attempt."""
        self._begun = begun
        self.actions: deque[AbortRequests | DistrustEngine | TryNextEngine] = deque()
        self._journal = journal
        self._observer = observer
        self._eos_token_ids = frozenset(eos_token_ids)
        # requests of this slice that ended here, but not in their engine
        self._stopped: list[str] = []
        self._backlog: deque[_Batch] = deque()

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    def receive(self, engine: str, outputs: list[RequestOutput]) -> None:
        """Handle the outputs of one step."""
        self._backlog.append(_Batch(engine, outputs))
        if len(self._backlog) == 1:
            self.work()

    def work(self) -> None:
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
        mine = [batch for batch in self._backlog if batch.engine == engine]
        self._forget(engine)
        for batch in mine:
            if not self._take(batch, batch.next, len(batch.outputs) - batch.next):
                break
        # a lost engine needs no messages
        self.actions = deque(
            action for action in self.actions if action.engine != engine or isinstance(action, TryNextEngine)
        )

    def fail(self, request: LiveRequest, message: str, refusal: RefusalKind | None = None) -> None:
        self.fail_with(request, failure_of(message, refusal))

    def fail_with(self, request: LiveRequest, error: Exception) -> None:
        """End the request with this error, unless it has ended."""
        if request.state is not RequestState.FINISHED:
            self.end(request, FinishReason.ERROR)
            request.collector.fail(error)

    def end(self, request: LiveRequest, reason: FinishReason) -> None:
        if request.state is RequestState.FINISHED:
            return
        # a request that was never sent is not observed
        self._journal.finish(request)
        if not request.attempt:
            return
        trace = request.trace
        trace.finished, trace.reason = time.perf_counter(), reason
        self._observer.request_finished(trace)

    def _take(self, batch: _Batch, first: int, count: int) -> bool:
        """Return False for a distrusted engine."""
        now = time.perf_counter()
        trusted = True
        for output in batch.outputs[first : first + count]:
            request = self._journal.get(output.request_id)
            # sent before the engine read the Abort, or for an earlier attempt
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
            except Exception:  # an error in Kvasir fails only this request
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
        trace = request.trace
        if output.num_cached_tokens is not None:
            self._begun(request, output)
            if trace.cached_tokens is None:
                trace.cached_tokens, trace.queue_seconds = output.num_cached_tokens, output.queue_seconds
        if output.progress is not None:
            _note(request, output.progress)
        token_ids, reason, stop_reason = output.token_ids, output.finish_reason, output.stop_token_id
        if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
            message = output.error or f"the engine {request.engine} gave up the request: try again"
            if output.refusal in _PASSING:
                if request.output_token_ids or output.refusal is not RefusalKind.OVERLOADED:
                    request.interrupt("returned")
                self.actions.append(TryNextEngine(request.engine, request, message, output.refusal))
            else:
                self.fail(request, message, output.refusal)
            return
        stop: str | None = None
        if request.stops is None:
            text = request.text.push(self._tokens_with_text(request, output))
            if reason is not None:
                text += request.text.finish()
        else:
            text, count = self._cut_at_stop_string(request, request.stops, output)
            if (stop := request.stops.found) is not None:
                token_ids, reason = token_ids[:count], FinishReason.STOP
        if token_ids:
            self._end_interruption(request)
            self._observe_tokens(request.trace, len(token_ids), now)
        elif output.pooled is not None:
            self._end_interruption(request)
            request.collector.put_pooled(output.pooled)
        self._journal.append(request, token_ids)
        if output.logprobs is not None or output.prompt_logprobs is not None:
            self._pass_logprobs(request, output, len(token_ids))
        if reason is not None:
            self.end(request, reason)
            if output.finish_reason is None:
                self._stopped.append(request.request_id)
        request.collector.put(text, token_ids, reason, stop_reason if stop is None else stop)

    def _tokens_with_text(self, request: LiveRequest, output: RequestOutput) -> list[int]:
        token_ids = output.token_ids
        if output.finish_reason is FinishReason.STOP and token_ids and not request.prompted.include_stop:
            last = token_ids[-1]
            if last == output.stop_token_id or last in self._eos_token_ids:
                # without `include_stop`, the token that ends a request has no text
                return token_ids[:-1]
        return token_ids

    def _cut_at_stop_string(
        self, request: LiveRequest, stops: StopSearch, output: RequestOutput
    ) -> tuple[str, int]:
        """Return the text to send and its number of tokens."""
        known, least = len(request.output_token_ids), request.params.min_tokens
        text = ""
        for count, token_id in enumerate(self._tokens_with_text(request, output), 1):
            text += stops.push(request.text.push((token_id,)), may_end=known + count > least)
            if stops.found is not None:
                return text, count
        count = len(output.token_ids)
        if output.finish_reason is not None:
            text += stops.push(request.text.finish(), may_end=known + count > least) + stops.finish()
        return text, count

    def _pass_logprobs(self, request: LiveRequest, output: RequestOutput, count: int) -> None:
        logprobs = output.logprobs
        if logprobs is not None and count < len(output.token_ids):
            logprobs = first_of(logprobs, count)
        request.collector.put_logprobs(logprobs, output.prompt_logprobs)

    def _end_interruption(self, request: LiveRequest) -> None:
        if (interruption := request.interruption) is not None:
            self._observer.request_moved(request.trace, interruption.reason, interruption.exact)
            self._observer.request_resumed(request.trace, time.perf_counter() - interruption.since)
            self._journal.resumed(request, interruption)

    def _observe_tokens(self, trace: Trace, count: int, now: float) -> None:
        if trace.first_token is None:
            trace.first_token = now
        seconds = None if trace.last_token is None else now - trace.last_token
        trace.output_tokens += count
        trace.last_token = now
        self._observer.tokens_received(trace, count, seconds)


def _note(request: LiveRequest, progress: RequestProgress) -> None:
    trace = request.trace
    # A later attempt's prefill includes tokens that the client already has.
    trace.num_preemptions = request.num_earlier_preemptions + progress.num_preemptions
    if request.num_earlier_tokens:
        return
    if progress.prefill_seconds is not None:
        trace.prefill_seconds = progress.prefill_seconds
    if progress.decode_seconds is not None:
        trace.decode_seconds = progress.decode_seconds
