"""Decides each step which requests compute how many tokens; owned and driven by EngineCore.

There are no prefill and decode phases: a step has a budget of tokens, and every request has tokens that are known
and not yet computed: many after its arrival, one while it generates. Running requests are served first; the rest
of the budget admits waiting ones, and a prompt longer than that is cut into chunks over several steps (the
scheduling of Sarathi-Serve and of vLLM V1).

Order. Both the running and the waiting requests stand in the order of their ranks: by priority, then by arrival.
The last running request is the one that gives way, so a request is never preempted in a step that it is already
part of; and as a step's budget holds a token for each row, every running request goes on in every step.

Blocks. A request gets the blocks for all tokens it has when it is admitted, so that nothing that comes later takes
them from a prefill in chunks, and one more whenever it outgrows them. If none is free, the last running request is
preempted: it loses row and blocks, keeps its tokens, and waits to be computed again.

Steps may overlap: `schedule` may be called again before `update` has the tokens of the step before. A request then
continues with a token that is *pending*: it is not in a list here yet, and the worker inserts it in time.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from kvasir.engine.kv.request_blocks import RequestBlocks, longest_sequence
from kvasir.engine.scheduling.admission_gates import AdmissionGate, BlockGate, RowGate
from kvasir.engine.scheduling.endings import Endings
from kvasir.engine.scheduling.engine_request import EngineRequest, RequestStatus
from kvasir.engine.scheduling.service_order import ServiceOrder
from kvasir.engine.scheduling.token_budget import TokenBudget
from kvasir.link.protocol import RequestOutput
from kvasir.worker.step import NAN_TOKEN, NO_TOKEN, NewRow, ScheduledRow, StepInput, StepOutput


class RequestRefused(ValueError):
    """The request can never be computed here; the message is for its client."""


@dataclass(slots=True)
class _Step:
    """A step while it is put together."""

    budget: int
    new: list[NewRow] = field(default_factory=list)
    scheduled: list[ScheduledRow] = field(default_factory=list)
    parts: list[tuple[EngineRequest, bool]] = field(default_factory=list)
    """Who stands behind each of `scheduled`, and whether a token is sampled for it."""


class Scheduler:
    """Requests from `add` to their end, by id in `requests`; each is in `waiting` or in `running`."""

    def __init__(
        self,
        blocks: RequestBlocks,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: Collection[int],
        by_priority: bool = False,
        long_prefill_token_threshold: int | None = None,
        budget: TokenBudget | None = None,
    ) -> None:
        """`long_prefill_token_threshold`: tokens of one prompt in a step at most, while it is not the only request;
        None: as many as the budget holds."""
        if max_num_seqs > max_num_batched_tokens:
            raise ValueError("a step's budget must hold one token of each running request")
        if max_model_len > longest_sequence(blocks.pool.num_blocks, blocks.block_size):
            raise ValueError("the pool must hold one request of the longest kind")
        self.requests: dict[str, EngineRequest] = {}
        self.waiting = ServiceOrder()
        self.running = ServiceOrder()
        self.blocks = blocks
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        """Prompt tokens of requests that have begun to generate, each request's once."""
        self.num_generated_tokens = 0
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._by_priority = by_priority
        self._long_prefill_token_threshold = long_prefill_token_threshold or max_num_batched_tokens
        self._endings = Endings(eos_token_ids, max_model_len)
        self._gates: tuple[AdmissionGate, ...] = (
            RowGate(self.running, max_num_seqs),
            BlockGate(blocks, self.running),
        )
        self._budget = budget
        self._num_arrivals = 0
        self._freed_rows: list[str] = []  # ids whose rows the worker still has to free
        self._in_flight: deque[list[tuple[EngineRequest, bool]]] = deque()  # scheduled steps without their update

    # ------------------------------------------------------------------------------------------ coming and going

    def add(self, request: EngineRequest) -> RequestOutput | None:
        """Queue the request. One that is complete already (resumed at its limit) is answered here instead.

        Its reserved tokens are released when it takes a row or ends. Raises RequestRefused.
        """
        try:
            answer = self._check(request)
        except RequestRefused:
            self.release_reserved(request)
            raise
        if answer is not None:
            self.release_reserved(request)
            return answer
        self._num_arrivals += 1
        request.rank = (request.priority, self._num_arrivals)
        self.requests[request.request_id] = request
        self.waiting.add(request)
        return None

    def _check(self, request: EngineRequest) -> RequestOutput | None:
        """Return the answer to a request that is complete. Raises RequestRefused."""
        if request.num_prompt_tokens == 0:
            raise RequestRefused("the prompt has no tokens")
        if request.priority and not self._by_priority:
            raise RequestRefused(
                f"priority is {request.priority}, and this engine serves requests as they come: leave it out, or "
                "start the engine with --scheduling-policy priority"
            )
        if request.num_output_tokens:
            status = self._endings.status_of(request)
            if status.finished:
                request.status = status
                return self._endings.output(request, request.num_output_tokens, [])
        elif request.num_prompt_tokens >= self._max_model_len:
            raise RequestRefused(
                f"the prompt has {request.num_prompt_tokens} tokens and this engine holds {self._max_model_len} "
                "of prompt and output together: shorten the prompt"
            )
        return None

    def abort(self, request: EngineRequest) -> None:
        """Forget the request, in whichever state it is; no output follows for it."""
        self._finish(request, RequestStatus.ABORTED)

    def release_reserved(self, request: EngineRequest) -> None:
        """Release the tokens that are reserved for the request, because it does not wait any more."""
        if self._budget is not None and request.num_reserved_tokens is not None:
            self._budget.release(request.num_reserved_tokens)
        request.num_reserved_tokens = None

    @property
    def has_work(self) -> bool:
        """Rows that the worker still has to free count: without a step they would be taken for ever."""
        return bool(self.requests or self._freed_rows or self._in_flight)

    # ------------------------------------------------------------------------------------------ before the step

    def schedule(self) -> StepInput | None:
        """The next step; None where there is nothing to compute and no row to free.

        Its requests count as computed from here on; `update` adds the sampled tokens.
        """
        step = _Step(self._max_num_batched_tokens)
        preemptions = self.num_preemptions
        self._schedule_running(step)
        if self.num_preemptions == preemptions:
            self._admit_waiting(step)
        finished, self._freed_rows = self._freed_rows, []
        if not (step.scheduled or finished):
            return None
        self._in_flight.append(step.parts)
        return StepInput(finished=finished, new=step.new, scheduled=step.scheduled)

    def _schedule_running(self, step: _Step) -> None:
        """Give every running request its tokens; a long chunk leaves one for each that comes after it."""
        place = 0
        while place < len(self.running):  # grows shorter where requests are preempted from its end
            request = self.running[place]
            place += 1
            count = self._next_tokens(request, step.budget - (len(self.running) - place))
            if count == 0:
                continue
            new_block_ids: list[int] = []
            if request.num_computed_tokens + count > len(request.block_ids) * self.blocks.block_size:
                missing = self.blocks.missing(request, request.num_computed_tokens + count)
                if not self._make_room(missing, request):
                    return  # it was the last one, and gave way itself
                new_block_ids = self.blocks.grow(request, missing)
            self._take(step, request, count, new_block_ids)

    def _admit_waiting(self, step: _Step) -> None:
        """Move requests from the head of the queue into rows while the budget and every gate allow it."""
        while self.waiting and step.budget > 0:
            request = self.waiting[0]
            if not all(gate.admits(request) for gate in self._gates):
                break  # no overtaking: a long request would starve
            self.waiting.remove(request)
            self.running.add(request)
            request.status = RequestStatus.RUNNING
            self.release_reserved(request)
            self.blocks.admit(request)
            step.new.append(request.new_row())
            self._take(step, request, self._next_tokens(request, step.budget), request.block_ids.copy())

    def _next_tokens(self, request: EngineRequest, budget: int) -> int:
        """How many tokens the request computes now; 0 only where the last one that it may sample is pending."""
        if request.num_pending and self._endings.awaits_last(request):
            return 0
        left = len(request.token_ids) + request.num_pending - request.num_computed_tokens
        if left == 1:
            return 1
        if len(self.requests) > 1:
            left = min(left, self._long_prefill_token_threshold)
        return min(left, budget)

    def _take(self, step: _Step, request: EngineRequest, count: int, new_block_ids: list[int]) -> None:
        step.scheduled.append(ScheduledRow(request.request_id, request.num_computed_tokens, count, new_block_ids))
        step.budget -= count
        request.num_computed_tokens += count
        samples = request.num_computed_tokens == len(request.token_ids) + request.num_pending
        request.num_pending += samples
        step.parts.append((request, samples))
        if request.num_computed_tokens >= (request.num_known_blocks + 1) * self.blocks.block_size:
            self.blocks.remember(request)

    def _make_room(self, blocks: int, request: EngineRequest) -> bool:
        """Preempt from the end until so many blocks are free; False where that took the request itself."""
        while not self.blocks.pool.can_allocate(blocks):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: EngineRequest) -> None:
        """A pending token still comes and is kept."""
        self.running.remove(request)
        self._give_up_row(request)
        request.num_computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
        self.waiting.add(request)
        self.num_preemptions += 1

    # ------------------------------------------------------------------------------------------- after the step

    def update(self, output: StepOutput) -> dict[str, list[RequestOutput]]:
        """Append the tokens of the oldest scheduled step, end complete requests, and return the outputs by
        frontend.

        Requests that ended since `schedule` are passed over: an abort taken before this call leaves no output
        behind it, and a token of a step that was scheduled before an end was known is dropped.
        """
        outputs: dict[str, list[RequestOutput]] = {}
        parts = self._in_flight.popleft()
        for place, ((request, samples), token_id) in enumerate(zip(parts, output.token_ids, strict=True)):
            request.num_pending -= samples
            if request.status.finished:
                continue
            if token_id < NO_TOKEN:
                answer = self._break_off(request, None if token_id == NAN_TOKEN else output.failed[place])
            elif samples != (token_id != NO_TOKEN):
                raise RuntimeError(
                    f"the worker returned token {token_id} for a request with {request.num_computed_tokens} of "
                    f"{request.num_tokens} tokens computed"
                )
            elif samples:
                answer = self._append(request, token_id, output, place)
            else:
                continue
            outputs.setdefault(request.frontend, []).append(answer)
        return outputs

    def _append(self, request: EngineRequest, token_id: int, output: StepOutput, place: int) -> RequestOutput:
        position = request.num_output_tokens
        request.token_ids.append(token_id)
        self.num_generated_tokens += 1
        is_first = not request.prompt_counted
        if is_first:
            request.prompt_counted = True
            self.num_prompt_tokens += request.num_prompt_tokens
        status = self._endings.status_of(request)
        if status.finished:
            self._finish(request, status)
        elif not (is_first or output.logprobs):
            return RequestOutput(request.request_id, request.attempt, position, [token_id])
        return self._endings.output(
            request,
            position,
            [token_id],
            logprobs=output.logprobs.get(place),
            prompt_logprobs=output.prompt_logprobs.get(place) if position == 0 else None,
            num_cached_tokens=request.num_cached_tokens if is_first else None,
        )

    def _break_off(self, request: EngineRequest, failure: str | None) -> RequestOutput:
        """End a request that has no next token: the worker could not prepare its sampling (`failure`), or the model
        computed NaN (None), as it would for every later token."""
        if failure is None:
            self.blocks.distrust(request)
        self._finish(request, RequestStatus.ABORTED)
        return self._endings.broken_off(request, failure)

    def check_idle(self) -> None:
        """Raises AssertionError where anything is left although there is no work."""
        assert not self.requests, f"{len(self.requests)} requests are live"
        assert not self.waiting, f"{len(self.waiting)} requests wait and none is live"
        assert not self.running, f"{len(self.running)} requests own a row and none is live"
        assert not self._freed_rows, f"{len(self._freed_rows)} rows were never freed in the worker"
        assert not self._in_flight, f"{len(self._in_flight)} steps were scheduled and never updated"
        self.blocks.check_idle()

    # --------------------------------------------------------------------------------------------------- pieces

    def _finish(self, request: EngineRequest, status: RequestStatus) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._give_up_row(request)
        else:
            self.waiting.remove(request)
        request.status = status
        self.release_reserved(request)
        del self.requests[request.request_id]

    def _give_up_row(self, request: EngineRequest) -> None:
        self.blocks.release(request)
        self._freed_rows.append(request.request_id)
