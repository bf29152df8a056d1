"""AsyncLLM: generates text with all engines of one model.

A request enters the journal, the dispatcher sends it to the engine that the router picks, and the output processor
turns the outputs into the deltas that `generate` yields.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence

import msgspec

from kvasir.client.calls import CALL_TIMEOUT, CallOutcome, Calls
from kvasir.client.dispatch.adapter_places import AdaptersInUse
from kvasir.client.dispatch.dispatcher import Dispatcher
from kvasir.client.dispatch.holding import HoldLimits
from kvasir.client.dispatch.router import Router
from kvasir.client.engine_starts import EngineStarts
from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.fair_queue import current_client
from kvasir.client.input.input_processor import InputProcessor
from kvasir.client.input.prompted import Prompted
from kvasir.client.journal import Journal
from kvasir.client.live_request import Delta, LiveRequest, RequestState
from kvasir.client.moves.hand_overs import HandOvers
from kvasir.client.moves.migration import Migrations
from kvasir.client.moves.quarantine import Quarantine
from kvasir.client.output_processor import AbortRequests, DistrustEngine, OutputProcessor, TryNextEngine
from kvasir.client.request_errors import InvalidRequest, in_field
from kvasir.client.request_observer import RequestObserver, Trace
from kvasir.client.service_limits import KnownRanks, ServiceLimits
from kvasir.client.text.detokenizer import Detokenizer
from kvasir.client.zero_gate import ZeroGate
from kvasir.config.frontend_settings import FrontendConfig
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.tokenizer import Tokenizer
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.link_events import (
    CacheChanged,
    CallAnswered,
    EngineChanged,
    EngineJoined,
    EngineLost,
    LinkEvent,
    OutputsReceived,
)
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import Abort, FailedStep, FinishReason
from kvasir.process.words import count
from kvasir.request.hashing import BlockHashing
from kvasir_contract.endpoints import GATE_SECONDS

__all__ = ["AsyncLLM", "Delta"]

log = logging.getLogger(__name__)


class AsyncLLM:
    """Owns the link and handles its events, on the event loop."""

    def __init__(
        self,
        config: FrontendConfig,
        model: ModelInfo,
        tokenizer: Tokenizer,
        chat_templates: ChatTemplates,
        *,
        observer: RequestObserver,
    ) -> None:
        self._router = Router()
        self._journal = Journal(config.server.max_live_requests, config.server.max_live_tokens, self._router.left)
        self.detokenizer = Detokenizer(tokenizer)
        self.model_fingerprint = model.fingerprint
        self._link = FrontendLink(
            config.link,
            service=config.link.service_uid,
            fingerprint=model.fingerprint,
            tokenizer_hash=model.tokenizer_hash,
            wake=self._take_events,
            # a client can send and abort many prompts before an engine has read any
            burst=2 * config.server.max_live_requests,
        )
        self._outputs = OutputProcessor(self._journal, observer, model.eos_token_ids, self._router.begun)
        self._outputs_planned = False  # `_work_outputs` is scheduled
        self._calls = Calls(self._link.send)
        self._starts = EngineStarts()
        self._quarantine = Quarantine()
        limits = HoldLimits.of(config.server)
        self.gate = ZeroGate(lambda: self._dispatcher.gate_opened(), can_hold=limits.seconds > GATE_SECONDS)
        self._dispatcher = Dispatcher(
            self._journal,
            self._router,
            self._link,
            observer,
            self._quarantine,
            self._outputs.fail_with,
            self._starts,
            limits,
            self.gate,
        )
        self._migrations = Migrations(
            self._journal, self._outputs, self._dispatcher.dispatch, config.server.max_lost_engines
        )
        self._hand_overs = HandOvers(self._journal, self._router.begun_at, self._dispatcher.hand_over)
        self._ranks = KnownRanks()
        self.num_arrived = 0
        """Requests since the start."""
        self._limits = ServiceLimits(config.model.max_model_len or model.max_model_len)
        self.input = InputProcessor(
            model,
            tokenizer,
            chat_templates,
            self._limits,
            config.server.max_live_requests,
            self._ranks.check,
            config.model.seed,
        )
        self.eos_token_ids = model.eos_token_ids

    async def start(self) -> None:
        """Bind the link. Raises ConfigError for an address that cannot be bound."""
        await self._link.start()

    async def close(self) -> None:
        self._dispatcher.close()
        for request in self._journal.live():
            if request.attempt == 0:  # the dispatcher fails it
                continue
            self._abort(request)
            self._outputs.fail(request, "the frontend is shutting down: try again")
        self._take_events()
        self._hand_overs.close()
        await self._link.close()
        self.input.close()

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109 - running into it is not an error here
        """Wait at most `timeout` seconds until no request is live; the caller accepts no new ones."""
        try:
            async with asyncio.timeout(timeout):
                await self._journal.wait_empty()
        except TimeoutError:
            log.warning("drain timeout of %g s: %s still running", timeout, count(len(self._journal), "request"))

    @property
    def link_address(self) -> str:
        return self._link.addresses

    def check_room(self) -> None:
        """Raise TooManyRequests if `generate` would."""
        self._journal.check_room()

    @property
    def live_requests(self) -> int:
        return len(self._journal)

    @property
    def held_requests(self) -> int:
        return self._dispatcher.num_held

    @property
    def waiting_requests(self) -> int:
        """Requests without an engine."""
        return sum(request.state is RequestState.WAITING for request in self._journal.live())

    def adapters_in_use(self) -> AdaptersInUse:
        """Return the adapters of live requests."""
        return AdaptersInUse.of(self._journal.live(), self._link.engines.values(), self._router.begun_at)

    def waits(self) -> list[float]:
        """Return how long each request without an engine has waited, in seconds."""
        now, live = time.perf_counter(), self._journal.live()
        return [now - since for request in live if (since := request.trace.waiting_since) is not None]

    def waits_for(self, traces: Sequence[Trace], rank: int | None) -> str | None:
        """Describe the engine that these requests wait for; None if none waits.

        `rank`: their data-parallel rank.
        """
        if all(trace.waiting_since is None for trace in traces):
            return None
        return self._dispatcher.waits_for(rank)

    @property
    def engines(self) -> Mapping[str, RemoteEngine]:
        return self._link.engines

    @property
    def max_model_len(self) -> int:
        """Return the tokens of prompt and output that every ready engine can take."""
        return self._limits.max_model_len

    async def generate(
        self, request_id: str, prompted: Prompted, trace: Trace | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Yield the output in deltas, the last one with a finish reason; a slow reader gets larger ones.

        Fills in `trace`. Closing or cancelling the generator aborts the request. Raises TooManyRequests or
        InvalidRequest before the first delta, EngineUnavailable or RequestFailed at any time.
        """
        text = prompted.text(self.detokenizer)
        request = LiveRequest(request_id, prompted, text, client=current_client.get(), trace=trace or Trace())
        self._journal.add(request)
        self.num_arrived += 1
        self.gate.arrived()
        try:
            if prompted.hashes is not None and prompted.hashes.is_long:
                await self.input.hash_blocks(prompted, self._block_hashings())
            self._dispatcher.dispatch(request)
            while True:
                delta = await request.collector.take()
                if delta.finish_reason is not None and self._quarantine:
                    self._quarantine.passed(request.digest)
                yield delta
                if delta.finish_reason is not None:
                    return
        except InvalidRequest as error:
            raise in_field(error, prompted.constraint_field) from None
        finally:
            self._leave(request)

    async def call(
        self, method: str, seconds: float = CALL_TIMEOUT, arguments: msgspec.Struct | None = None
    ) -> list[CallOutcome]:
        """Send a protocol.Call to every ready engine. A lost or late engine's outcome has an error.

        Raises EngineUnavailable if no engine is ready.
        """
        engines = [engine for engine in self._link.engines.values() if engine.usable]
        if not engines:
            raise self._dispatcher.unavailable()
        packed = b"" if arguments is None else msgspec.msgpack.encode(arguments)
        return await self._calls.call(engines, method, seconds, packed)

    # ------------------------------------------------------------------------------------------ requests

    def _block_hashings(self) -> set[BlockHashing]:
        hashings = {engine.block_hashing for engine in self._link.engines.values() if engine.usable}
        return {hashing for hashing in hashings if hashing is not None}

    def _leave(self, request: LiveRequest) -> None:
        self._abort(request)
        self._outputs.end(request, FinishReason.ABORT)
        self._journal.remove(request)
        self.gate.left()
        self._dispatcher.left(request)

    def _abort(self, request: LiveRequest) -> None:
        if request.state is RequestState.RUNNING:
            self._link.send(request.engine, Abort([request.request_id]))

    # ------------------------------------------------------------------------------------------ events

    def _take_events(self) -> None:
        # sends may queue further events
        events = self._link.events
        while events:
            event = events.popleft()
            try:
                self._handle(event)
            except Exception:  # the events behind it must still be handled
                log.exception("an event of the link was not handled: %s", type(event).__name__)

    def _handle(self, event: LinkEvent) -> None:
        match event:
            case OutputsReceived(engine, message):
                try:
                    self._outputs.receive(engine.incarnation, message.outputs)
                finally:
                    self._after_outputs()
                self._router.reported(engine)
                self._dispatcher.engine_changed(engine, is_step=True)
                self._hand_overs.work()
            case EngineJoined(engine):
                self._ranks.joined(engine)
                self._starts.joined(engine)
                self._quarantine.joined(engine.incarnation, engine.rank, engine.crashed)
                self._dispatcher.reconsider()
                self._router.reported(engine)
            case EngineChanged(engine):
                self._router.reported(engine)
                self._starts.changed(engine)
                self._hand_overs.engine_changed(engine)
                self._note_engines()
                self._dispatcher.engine_changed(engine, is_step=False)
                self._hand_overs.work()
            case CacheChanged(engine, message):
                self._router.cache_changed(engine, message)
            case CallAnswered(engine, result):
                self._calls.answered(engine.incarnation, result)
            case EngineLost(engine, reason, ran):
                self._on_engine_lost(engine, reason, ran)

    def _on_engine_lost(self, engine: RemoteEngine, reason: str, ran: FailedStep | None) -> None:
        try:
            # earlier outputs still reach their readers
            self._outputs.flush(engine.incarnation)
            self._after_outputs()
        finally:  # a defect there must not leave the requests without an end
            requests = self._journal.of_engine(engine.incarnation)
            self._quarantine.lost(engine.incarnation, engine.rank, requests, ran)
            self._migrations.engine_lost(engine, reason)
            self._calls.lost(engine.incarnation, reason)
            self._router.forget(engine.incarnation)
            self._starts.forget(engine.incarnation)
            self._hand_overs.forget(engine.incarnation)
            self._note_engines()
            self._dispatcher.engine_lost(engine.incarnation)

    def _note_engines(self) -> None:
        engines = self._link.engines.values()
        self._limits.engines_changed(engines)
        self.gate.engines_changed(usable=any(engine.usable for engine in engines))

    def _work_outputs(self) -> None:
        self._outputs_planned = False
        try:
            self._outputs.work()
        finally:
            self._after_outputs()
            self._dispatcher.release()

    def _after_outputs(self) -> None:
        if self._outputs.has_backlog and not self._outputs_planned:
            self._outputs_planned = True
            asyncio.get_running_loop().call_soon(self._work_outputs)
        while self._outputs.actions:
            match self._outputs.actions.popleft():
                case AbortRequests(engine, request_ids):
                    self._link.send(engine, Abort(request_ids))
                case DistrustEngine(engine, reason):
                    self._link.lose(engine, reason)
                case TryNextEngine(_, request, error, refusal):
                    if not self._dispatcher.refused(request, refusal, error):
                        self._outputs.fail(request, error, refusal)
