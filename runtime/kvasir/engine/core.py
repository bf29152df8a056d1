"""EngineCore: schedule, execute, update. It has no sockets and reads no clock."""

import logging
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from kvasir.engine.adapters.adapter_gate import AdapterGate
from kvasir.engine.engine_calls import EngineCalls
from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.grammar.grammar_gate import GrammarGate
from kvasir.engine.grammar.late_masks import LateMasks
from kvasir.engine.health.black_box import BlackBox
from kvasir.engine.health.step_trace import StepPhase, StepTrace
from kvasir.engine.ingest import Ingest, RefusedRequest
from kvasir.engine.scheduling.endings import error_output
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.token_budget import RequestRefused
from kvasir.executor.executor import Executor, SubmittedStep
from kvasir.link.protocol import (
    AdaptersHeld,
    AddRequest,
    Call,
    EngineStats,
    Outputs,
    RefusalKind,
    RequestOutput,
    Result,
)
from kvasir.worker.step import StepInput, StepOutput

log = logging.getLogger(__name__)


class EngineCore:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        ingest: Ingest,
        *,
        max_in_flight: int = 1,
        grammars: GrammarGate | None = None,
        adapters: AdapterGate | None = None,
    ) -> None:
        """`max_in_flight`: steps submitted and not updated: 2 for asynchronous scheduling, 1 per pipeline stage."""
        self.scheduler = scheduler
        self.ingest = ingest  # in the link's thread
        self.calls = EngineCalls(scheduler, executor)
        self.num_steps = 0
        self.trace = StepTrace()
        self.black_box = BlackBox("")  # the engine process sets it
        self.num_in_inbox: Callable[[], int] = lambda: 0  # the loop sets it
        self._max_in_flight = max_in_flight
        self._in_flight: deque[tuple[StepInput, SubmittedStep]] = deque()
        self._executor = executor
        self._grammars = grammars
        self._adapters = adapters
        if adapters is not None:
            adapters.wake = scheduler.wake
        self._late_masks = LateMasks(ingest.vocab_size, executor.supply, self._fail_guide)
        self._answers: dict[str, list[RequestOutput]] = {}  # outputs that need no step, by frontend

    # ------------------------------------------------------------------------------------------ coming and going

    def add(self, frontend: str, message: AddRequest) -> None:
        prepared = self.ingest.prepare(frontend, message)
        if isinstance(prepared, RefusedRequest):
            self.refuse(prepared)
        else:
            self.queue(prepared)

    def queue(self, request: EngineRequest) -> None:
        if not self._make_room_for(request):
            self.scheduler.drop(request)
            return
        try:
            answer = self.scheduler.add(request)
        except RequestRefused as refusal:
            answer = error_output(request, str(refusal), RefusalKind.INVALID)
        except Exception:  # a defect must end this request only
            log.exception("request %s could not be queued", request.request_id)
            self.scheduler.drop(request)
            answer = error_output(request, "the engine could not queue the request: its log has the details", None)
        if answer is not None:
            self._answer(request.frontend, answer)
        else:
            if self._adapters is not None:
                self._adapters.arrive(request)
            self._take_guide(request)

    def refuse(self, refusal: RefusedRequest) -> None:
        output = refusal.output
        live = self.scheduler.requests.get(output.request_id)
        if live is not None and live.frontend == refusal.frontend:
            # the answer would end the live attempt for its frontend only
            if _is_repeated(output.request_id, output.attempt, live):
                return
            self.scheduler.abort(live)
        self._answer(refusal.frontend, output)

    def abort(self, frontend: str, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            request = self.scheduler.requests.get(request_id)
            if request is not None and request.frontend == frontend:
                self.scheduler.abort(request)

    def wake(self, request_id: str) -> None:
        request = self.scheduler.requests.get(request_id)
        if request is not None:
            self._take_guide(request)
        self.scheduler.wake(request_id)

    def abort_frontend(self, frontend: str) -> int:
        self._answers.pop(frontend, None)
        requests = [request for request in self.scheduler.requests.values() if request.frontend == frontend]
        for request in requests:
            self.scheduler.abort(request)
        return len(requests)

    def fail_all(self, reason: str) -> int:
        requests = list(self.scheduler.requests.values())
        for request in requests:
            self.scheduler.abort(request)
            self._answer(request.frontend, error_output(request, reason, RefusalKind.UNAVAILABLE))
        return len(requests)

    def call(self, call: Call) -> Result:
        return self.calls.answer(call)

    # ---------------------------------------------------------------------------------------------------- steps

    @property
    def has_work(self) -> bool:
        """Return whether the next step does anything: not if each request waits for an event."""
        loads = self._adapters is not None and self._adapters.has_work
        return self.scheduler.has_work or bool(self._answers) or loads

    @property
    def has_requests(self) -> bool:
        return bool(self.scheduler.requests)

    def step(self) -> dict[str, Outputs]:
        return self.update(self.execute())

    def execute(self) -> StepOutput | None:
        """Submit the next step, then wait for the oldest; None if there is none, or another can be submitted."""
        in_flight = self._in_flight
        if self._adapters is not None and self._adapters.has_work:
            self._load_adapters(self._adapters)
        step = self.scheduler.schedule()
        self.black_box.note(self.scheduler.in_flight)
        if step is not None and len(in_flight) + 1 < self._max_in_flight:
            self._submit(step)
            return None
        oldest = in_flight[0][0] if in_flight else step
        if oldest is None:
            return None
        self.trace.enter(StepPhase.EXECUTE, oldest)  # `submit` may compute the step
        if step is not None:
            self._submit(step)
        output = in_flight.popleft()[1].result()
        self.num_steps += 1
        return output

    def update(self, output: StepOutput | None) -> dict[str, Outputs]:
        """Return the outputs of a step by frontend. Aborted requests have none."""
        outputs = self.scheduler.update(output) if output is not None else {}
        self._late_masks.supply()
        for frontend, answers in self._answers.items():
            outputs.setdefault(frontend, []).extend(answers)
        self._answers = {}
        stats = self.stats()
        return {frontend: Outputs(each, stats) for frontend, each in outputs.items()}

    @property
    def num_waiting(self) -> int:
        # without a row: in the inbox, waiting, preempted or blocked
        scheduler = self.scheduler
        return len(scheduler.waiting) + scheduler.num_suspects + len(scheduler.blocked) + self.num_in_inbox()

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            waiting=self.num_waiting,
            running=len(scheduler.running),
            kv_blocks_used=scheduler.blocks.pool.num_used,
            step=self.num_steps,
            preemptions=scheduler.num_preemptions,
            corrupted=scheduler.num_corrupted_requests,
            unfinished_tokens=scheduler.num_unfinished_tokens,
            drafts=scheduler.draft_stats,
        )

    def work_ahead(self) -> bool:
        """Do some milliseconds of work that later steps need. Return False if none is left."""
        return self._executor.work_ahead()

    def close(self) -> None:
        if self._grammars is not None:
            self._grammars.close()
        if self._adapters is not None:
            self._adapters.close()

    def watch_adapters(self, on_change: Callable[[AdaptersHeld], None]) -> None:
        """Report the adapters in memory from now on."""
        if self._adapters is not None:
            self._adapters.memory.on_change = on_change

    def check_idle(self) -> None:
        self.scheduler.check_idle()
        self._late_masks.check_idle()
        if not self.scheduler.running:
            self._executor.check_idle()

    # --------------------------------------------------------------------------------------------------- pieces

    def _make_room_for(self, request: EngineRequest) -> bool:
        live = self.scheduler.requests.get(request.request_id)
        if live is None:
            return True
        if live.frontend != request.frontend:
            reason = f"request id {request.request_id} is in use by another frontend"
            self._answer(request.frontend, error_output(request, reason, RefusalKind.INVALID))
            return False
        if _is_repeated(request.request_id, request.attempt, live):
            return False
        self.scheduler.abort(live)
        return True

    def _load_adapters(self, adapters: AdapterGate) -> None:
        failed = adapters.work()
        if failed is None:
            return
        log.warning("%s", failed.reason)
        for request in adapters.waiting_for_source(failed.adapter):
            self.scheduler.abort(request)
            self._answer(request.frontend, error_output(request, failed.reason, failed.refusal))

    def _submit(self, step: StepInput) -> None:
        if self._adapters is not None and (slots := self._adapters.take_changes()):
            step = msgspec.structs.replace(step, slots=slots)
        self._in_flight.append((step, self._executor.submit(step)))
        if step.masked:
            self._late_masks.expect(step, self.scheduler.in_flight[-1])
            self._late_masks.supply()

    def _take_guide(self, request: EngineRequest) -> None:
        refusal = None if self._grammars is None else self._grammars.take(request)
        if refusal is not None:
            self.scheduler.abort(request)
            self._answer(request.frontend, error_output(request, refusal, RefusalKind.INVALID))
        elif (answer := self.scheduler.end_complete(request)) is not None:
            self._answer(request.frontend, answer)

    def _fail_guide(self, request: EngineRequest, error: Exception) -> None:
        log.error("request %s ends with an error: no mask for it", request.request_id, exc_info=error)
        self.scheduler.abort(request)
        self._answer(request.frontend, error_output(request, str(error), RefusalKind.INVALID))

    def _answer(self, frontend: str, output: RequestOutput) -> None:
        self._answers.setdefault(frontend, []).append(output)


def _is_repeated(request_id: str, attempt: int, live: EngineRequest) -> bool:
    if attempt > live.attempt:
        return False
    log.warning("request %s attempt %d came while attempt %d runs: dropped", request_id, attempt, live.attempt)
    return True
