"""An engine with a script in place of a model, on the real link: for tests of what stands before the engine."""

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvasir.config.process_settings import LinkConfig
from kvasir.hub.model_info import ModelInfo
from kvasir.link.engine_end.engine_link import EngineIdentity, FrontendLost, Received, new_incarnation
from kvasir.link.protocol import (
    Abort,
    AdaptersHeld,
    AddRequest,
    Call,
    Dead,
    DraftStats,
    EngineStats,
    FinishReason,
    Goodbye,
    Logprobs,
    Outputs,
    Ready,
    RefusalKind,
    RequestOutput,
    Result,
)
from kvasir.request.request_core import RequestKind
from kvasir_contract.phases import Phase
from runtime.link.queued_link import QueuedLink
from runtime.link_messages import prompt_of

TIMEOUT = 60.0
NODE = "node-of-the-engine"


def logprobs_of(token_ids: list[int], top: int) -> Logprobs:
    """A made-up model's: an even token is the most likely one at its place, an odd one none of the most likely."""
    return Logprobs(
        token=[-0.25 if token_id % 2 == 0 else -8.5 for token_id in token_ids],
        rank=[1 if token_id % 2 == 0 else 100 for token_id in token_ids],
        top_ids=[[token_id + token_id % 2 + n for n in range(top)] for token_id in token_ids],
        top=[[-0.25 - n for n in range(top)] for _ in token_ids],
    )


@dataclass
class Script:
    """How every request is answered: with the tokens of `answer`, one a message, then the end-of-sequence token."""

    answer: list[int]
    eos: int
    pause_at: int | None = None
    """Stop after so many tokens until `ScriptedEngine.resume`."""
    error: str = ""
    """Fail instead of sending the last token of the answer."""
    refusal: RefusalKind | None = None
    """Kind of the failure that `error` causes."""
    cached: int = 0
    """Prompt tokens that were found in the prefix cache."""
    calls: dict[str, str] = field(default_factory=dict)
    """Method → what a call of it is answered with, an error or nothing; others are not answered."""
    next_logprobs: Callable[[list[int], int], Logprobs] | None = None
    """The log probabilities after these tokens, with so many of the most likely ones; else they are made up."""
    by_seed: dict[int, list[int]] = field(default_factory=dict)
    """Other answers for requests of these seeds."""
    turns: list[list[int]] = field(default_factory=list)
    """Instead of `answer`: those of the first request, the second, and so on; then again from the first."""
    vector: Callable[[AddRequest], list[float]] = lambda request: [1.0, float(len(request.prompt_tokens) // 4)]
    """The answer to a request of kind POOL."""
    drafts: DraftStats | None = None
    pace: float = 0.0
    """Seconds before each token. Without them, a frontend may get several tokens in one delta."""


@dataclass
class _Running:
    frontend: str
    request: AddRequest
    answer: list[int]
    sent: int = 0
    released: bool = False


@dataclass
class Seen:
    """The messages that the engine received; the events are set when they arrive."""

    requests: list[AddRequest] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)


class ScriptedEngine:
    """Runs in a thread. Other threads change `script` before they send a request."""

    def __init__(
        self, config: LinkConfig, model: ModelInfo, script: Script, rank: int = 0, features: tuple[str, ...] = ()
    ) -> None:
        self.script = script
        self.seen = Seen()
        self.incarnation = new_incarnation(rank)
        identity = EngineIdentity(
            incarnation=self.incarnation,
            rank=rank,
            node=NODE,
            service=config.service_uid,
            version="0",
            fingerprint=model.fingerprint,
            tokenizer_hash=model.tokenizer_hash,
        )
        self._ready = Ready(
            block_size=16, num_blocks=1000, max_model_len=model.max_model_len, max_num_seqs=64, features=features
        )
        self._link = QueuedLink(config, identity)
        self._running: dict[str, _Running] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=self.incarnation, daemon=True)

    def start(self, *, ready: bool = True) -> None:
        self._link.start()
        self._thread.start()
        if ready:
            self.announce_ready()

    def show_adapters(self, held: AdaptersHeld) -> None:
        self._link.show_adapters(held)

    def announce_ready(self) -> None:
        self._link.set_phase(Phase.READY)
        self._link.announce_ready(self._ready)

    def resume(self) -> None:
        """Go on with the requests that `Script.pause_at` stopped."""
        with self._changed:
            for running in self._running.values():
                running.released = True
        self._link.inbox.put(None)

    def wait_requests(self, count: int) -> None:
        """Block until this many requests came, in all."""
        self._wait(lambda: len(self.seen.requests) >= count, f"{count} requests")

    def wait_aborts(self, count: int) -> None:
        """Block until this many requests were aborted, in all."""
        self._wait(lambda: len(self.seen.aborted) >= count, f"{count} aborts")

    def close(self, last: Goodbye | Dead | None = None) -> None:
        self._link.inbox.put(FrontendLost(""))
        self._thread.join(TIMEOUT)
        self._link.close(last or Goodbye())

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT), f"the engine did not see {what}: {self.seen}"

    def _run(self) -> None:
        while True:
            item = self._link.inbox.get()
            if isinstance(item, FrontendLost) and item.frontend == "":
                return
            with self._changed:
                if isinstance(item, Received):
                    self._take(item)
                for running in list(self._running.values()):
                    self._advance(running)
                self._changed.notify_all()

    def _take(self, item: Received) -> None:
        if isinstance(item.message, AddRequest):
            answer = self._answer_of(item.message)
            self.seen.requests.append(item.message)
            self._running[item.message.request_id] = _Running(item.frontend, item.message, answer)
        elif isinstance(item.message, Call):
            self.seen.calls.append(item.message.method)
            if (error := self.script.calls.get(item.message.method)) is not None:
                self._link.send(item.frontend, Result(item.message.id, error))
        elif isinstance(item.message, Abort):
            for request_id in item.message.request_ids:
                if self._running.pop(request_id, None) is not None:
                    self.seen.aborted.add(request_id)

    def _answer_of(self, request: AddRequest) -> list[int]:
        if turns := self.script.turns:
            return turns[len(self.seen.requests) % len(turns)]
        return self.script.by_seed.get(request.params.seed, self.script.answer)

    def _advance(self, running: _Running) -> None:
        script = self.script
        answer = running.answer
        limit = min(running.request.params.max_tokens, len(answer) + 1)
        while running.sent < limit:
            if running.sent == script.pause_at and not running.released:
                return
            time.sleep(script.pace)
            last = running.sent == limit - 1
            if running.request.kind is RequestKind.POOL and not script.error:
                self._send(running, [], FinishReason.STOP)
                break
            if last and script.error:
                self._send(running, [], FinishReason.ERROR, script.error)
            elif running.sent == len(answer):
                self._send(running, [script.eos], FinishReason.STOP)
            else:
                self._send(running, [answer[running.sent]], FinishReason.LENGTH if last else None)
        del self._running[running.request.request_id]

    def _send(self, running: _Running, tokens: list[int], reason: FinishReason | None, error: str = "") -> None:
        request = running.request
        output = RequestOutput(
            request.request_id,
            request.attempt,
            running.sent,
            tokens,
            reason,
            error=error,
            refusal=self.script.refusal if error else None,
            logprobs=self._of_output(request, tokens),
            prompt_logprobs=self._of_prompt(request) if running.sent == 0 else None,
            num_cached_tokens=self.script.cached if running.sent == 0 else None,
            queue_seconds=0.0 if running.sent == 0 else None,
            pooled=self._pooled(request) if reason is FinishReason.STOP else None,
        )
        running.sent += 1
        stats = EngineStats(0, len(self._running), kv_blocks_used=1, step=running.sent, drafts=self.script.drafts)
        self._link.send(running.frontend, Outputs([output], stats))

    def _pooled(self, request: AddRequest) -> bytes | None:
        if request.kind is not RequestKind.POOL:
            return None
        vector = self.script.vector(request)
        return struct.pack(f"<{len(vector)}f", *vector)

    def _of_output(self, request: AddRequest, tokens: list[int]) -> Logprobs | None:
        if (top := request.params.logprobs) is None:
            return None
        if (next_logprobs := self.script.next_logprobs) is not None:
            return next_logprobs(prompt_of(request), top)
        return logprobs_of(tokens, top)

    def _of_prompt(self, request: AddRequest) -> Logprobs | None:
        top = request.params.prompt_logprobs
        return None if top is None else logprobs_of(prompt_of(request)[1:], top)
