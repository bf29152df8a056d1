"""Scheduler: decides which requests compute how many tokens in each step.

There are no prefill and decode phases: each request has known tokens that are not computed yet. Running requests
come first, then waiting ones; long prompts are cut into chunks (Sarathi-Serve, vLLM V1).
docs/design/scheduler.md describes order, preemption and overlapping steps.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kvasir.engine.engine_request import EngineRequest, RequestStatus
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.admission_gates import AdmissionGate
from kvasir.engine.scheduling.endings import Endings
from kvasir.engine.scheduling.lone_steps import LoneSteps
from kvasir.engine.scheduling.rations import Ration
from kvasir.engine.scheduling.request_queues import RequestQueues
from kvasir.engine.scheduling.step_drafts import Drafting, StepDrafts
from kvasir.engine.scheduling.step_results import StepResults, StepRows
from kvasir.engine.scheduling.token_budget import EntranceCheck, RequestRefused, TokenBudget
from kvasir.link.protocol import DraftStats, RequestOutput
from kvasir.worker.step import NO_NEW_BLOCKS, NewRow, ScheduledRow, StepInput, StepOutput


@dataclass(slots=True)
class _Step:
    budget: int
    has_drafts: bool = False  # rows may have them
    drafts: dict[EngineRequest, tuple[int, ...]] = field(default_factory=dict)
    new: list[NewRow] = field(default_factory=list)
    scheduled: list[ScheduledRow] = field(default_factory=list)
    rows: StepRows = field(default_factory=list)  # parallel to `scheduled`
    masked: list[int] = field(default_factory=list)  # places in `scheduled`


class Scheduler:
    def __init__(
        self,
        blocks: KVManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: Collection[int],
        by_priority: bool = False,
        long_prefill_token_threshold: int | None = None,  # of one prompt, in a step with several requests
        budget: TokenBudget | None = None,
        lookahead: int = 1,  # most pending tokens of a scheduled request
        gates: Sequence[AdmissionGate] = (),
        rations: Sequence[Ration] = (),
        sends_sampled: bool = False,  # steps carry the tokens of earlier steps
        drafting: Drafting | None = None,
    ) -> None:
        if max_num_seqs > max_num_batched_tokens:
            raise ValueError("a step's budget must hold one token of each running request")
        if max_model_len > blocks.longest_sequence:
            raise ValueError("the pool must hold one request of the longest kind")
        self._endings = Endings(eos_token_ids, max_model_len)
        self._drafts = StepDrafts(drafting, self._endings, blocks) if drafting else None
        gates = [*gates, self._drafts] if self._drafts else gates
        self._queues = queues = RequestQueues(blocks, max_num_seqs, gates, budget)
        self.requests, self.blocked = queues.requests, queues.blocked
        self.waiting, self.running = queues.waiting, queues.running
        self.room = queues.room
        self._lone_steps = LoneSteps(queues)
        self.blocks = blocks
        self.num_preemptions = 0
        self.num_unfinished_tokens = 0  # of prompts in rows
        self._max_num_batched_tokens = max_num_batched_tokens
        self._long_prefill_token_threshold = long_prefill_token_threshold or max_num_batched_tokens
        self._lookahead = lookahead
        self._entrance = EntranceCheck(self._endings, by_priority)
        self._results = StepResults(self._endings, queues, blocks, sends_sampled, self._drafts)
        self._rations = tuple(rations)
        self.num_scheduled = 0  # steps
        self._num_arrivals = 0
        self._stalled = False  # until an event
        self.in_flight: deque[StepRows] = deque()  # without their update

    # ------------------------------------------------------------------------------------------ add and abort

    def add(self, request: EngineRequest) -> RequestOutput | None:
        """Queue the request, or return its answer if it was resumed at its limit. Raises RequestRefused."""
        try:
            answer = self._entrance.check(request)
        except RequestRefused:
            self._queues.drop(request)
            raise
        if answer is not None:
            self._queues.drop(request)
            return answer
        self._num_arrivals += 1
        request.rank = (request.core.priority, request.seniority, self._num_arrivals)
        self._queues.arrive(request)
        self._stalled = False
        return None

    def end_complete(self, request: EngineRequest) -> RequestOutput | None:
        """End a resumed request whose guide is complete; return its answer, or None."""
        if request.guide is None or not request.num_output_tokens or not request.guide.is_complete:
            return None
        self._queues.finish(request, RequestStatus.STOPPED)
        self._stalled = False
        return self._endings.output(request, request.num_output_tokens, [])

    def abort(self, request: EngineRequest) -> None:
        self._queues.finish(request, RequestStatus.ABORTED)
        self._stalled = False

    def wake(self, request_id: str) -> None:
        self._queues.wake(request_id)
        self._stalled = False

    def reconsider(self) -> None:
        # Blocks have become free: the gates may decide otherwise.
        self._stalled = False

    def drop(self, request: EngineRequest) -> None:
        self._queues.drop(request)

    @property
    def has_work(self) -> bool:
        """Return whether a step is in flight or needed, if only to free rows."""
        runnable = not self._stalled and (self.running or self.waiting or self._queues.suspects)
        return bool(runnable or self._queues.freed_rows or self.in_flight)

    @property
    def num_computed(self) -> int:
        return self.num_scheduled - len(self.in_flight)

    @property
    def num_suspects(self) -> int:
        return len(self._queues.suspects)

    @property
    def num_prompt_tokens(self) -> int:
        return self._results.num_prompt_tokens

    @property
    def num_generated_tokens(self) -> int:
        return self._results.num_generated_tokens

    @property
    def num_cached_prompt_tokens(self) -> int:
        return self._results.num_cached_prompt_tokens

    @property
    def num_corrupted_requests(self) -> int:
        return self._results.num_corrupted_requests

    @property
    def draft_stats(self) -> DraftStats | None:
        return None if self._drafts is None else self._drafts.counts.stats()

    # ------------------------------------------------------------------------------------------ before the step

    def schedule(self) -> StepInput | None:
        """Return the next step; None if there is nothing to compute and no row to free."""
        suspect = None
        if self._lone_steps.any:
            if self._lone_steps.must_wait(bool(self.in_flight)):
                return None
            suspect = self._lone_steps.next()
        step = _Step(self._max_num_batched_tokens)
        preemptions = self.num_preemptions
        self.num_unfinished_tokens = 0
        for ration in self._rations:
            ration.step_begins(len(self.running), len(self.waiting))
        if suspect is not None:
            self._schedule_lone(step, suspect)
        else:
            self._schedule_running(step)
            if self.num_preemptions == preemptions and not self._lone_steps.waits:
                self._admit_waiting(step)
        # Its tokens count as computed from here on.
        finished, self._queues.freed_rows = self._queues.freed_rows, []
        if not (step.scheduled or finished):
            self._stalled = not (self.in_flight or self._lone_steps.can_follow)
            return None
        self.in_flight.append(step.rows)
        self.num_scheduled += 1
        sampled, forced = self._results.take_tokens()
        return StepInput(
            finished, step.new, step.scheduled, self.num_scheduled, sampled, tuple(step.masked), forced
        )

    def _schedule_running(self, step: _Step) -> None:
        step.has_drafts = self._drafts is not None and self._drafts.step_begins(len(self.running))
        is_plain = not (self._rations or step.has_drafts or self._lone_steps.current)
        place = 0
        while place < len(self.running):  # preemption removes requests from the end
            request = self.running[place]
            place += 1
            # One token is left for each later request: every running one continues in every step.
            budget = step.budget - (len(self.running) - place)
            count = self._next_tokens(request, budget) if is_plain else self._limited(step, request, budget)
            if count == 0:
                continue
            new_block_ids = NO_NEW_BLOCKS
            if request.num_computed_tokens + count > request.num_slots:
                grown = self._grow(request, count)
                if grown is None:
                    return  # `request` was preempted itself
                new_block_ids = grown
            if is_plain:
                self._take(step, request, count, new_block_ids)
            else:
                self._take_limited(step, request, count, new_block_ids)

    def _admit_waiting(self, step: _Step) -> None:
        while step.budget > 0 and (request := self._queues.next_admissible(self.waiting)) is not None:
            most = step.budget
            if self._rations:
                request.num_computed_tokens = self.blocks.num_cached_tokens(request)  # as if admitted
                most = self._limited(step, request, step.budget)
                if most == 0:
                    request.num_computed_tokens = 0
                    break
            self._admit(step, request, most)

    def _schedule_lone(self, step: _Step, suspect: EngineRequest) -> None:
        if suspect.status is not RequestStatus.RUNNING:
            self._admit(step, suspect, step.budget)
            return
        count = self._next_tokens(suspect, step.budget)
        new_block_ids = self._grow(suspect, count)
        if new_block_ids is not None:
            self._take_limited(step, suspect, count, new_block_ids)

    def _admit(self, step: _Step, request: EngineRequest, most: int) -> None:
        self._queues.take_row(request)
        # All its blocks at once: later requests cannot take them from a chunked prefill.
        tables = self.blocks.admit(request)
        step.new.append(request.new_row())
        self._take_limited(step, request, self._next_tokens(request, most), tables)

    def _grow(self, request: EngineRequest, count: int) -> list[list[int]] | None:
        end = request.num_computed_tokens + count
        if end <= request.num_slots:
            return NO_NEW_BLOCKS
        missing = self.blocks.missing(request, end)
        if not self._make_room(sum(missing), request):
            return None
        return self.blocks.grow(request, missing)

    def _next_tokens(self, request: EngineRequest, budget: int) -> int:
        """Return how many tokens the request computes now; 0 while it waits for a pending token."""
        if request.num_pending and (
            request.num_drafts or request.num_pending > self._lookahead or self._endings.awaits_last(request)
        ):
            return 0
        left = len(request.token_ids) + request.num_pending - request.num_computed_tokens
        if left == 1:
            return 1
        if len(self.requests) > 1:
            left = min(left, self._long_prefill_token_threshold)
        return min(left, budget)

    def _limited(self, step: _Step, request: EngineRequest, budget: int) -> int:
        if request is self._lone_steps.current:
            return 0
        count = self._next_tokens(request, budget)
        if count and self._drafts is not None and step.has_drafts and request.status is RequestStatus.RUNNING:
            if self._drafts.awaits(request):
                return 0
            if request.num_computed_tokens == request.num_tokens - 1 and not request.num_pending:
                step.drafts[request] = drafts = self._drafts.choose(request, budget)
                count += len(drafts)
        for ration in self._rations:
            if count:
                count = ration.most(request, count)
        return count

    def _take(self, step: _Step, request: EngineRequest, count: int, new_block_ids: list[list[int]]) -> None:
        step.scheduled.append(ScheduledRow(request.request_id, request.num_computed_tokens, count, new_block_ids))
        step.budget -= count
        request.num_computed_tokens += count
        samples = request.num_computed_tokens == len(request.token_ids) + request.num_pending
        request.num_pending += samples
        if request.guide is not None and samples and (request.num_pending > 1 or not request.guide.is_free):
            step.masked.append(len(step.rows))  # which may make the guide restrict again
        step.rows.append((request, samples))
        if not samples:
            self.num_unfinished_tokens += len(request.token_ids) - request.num_computed_tokens
        if request.num_computed_tokens >= (request.num_known_blocks + 1) * self.blocks.block_size:
            self.blocks.remember(request)

    def _take_limited(
        self, step: _Step, request: EngineRequest, count: int, new_block_ids: list[list[int]]
    ) -> None:
        for ration in self._rations:
            ration.joined(request, count)
        drafts = step.drafts[request][: count - 1] if request in step.drafts else ()
        if drafts:
            self._take_drafted(step, request, drafts, new_block_ids)
        else:
            self._take(step, request, count, new_block_ids)

    def _take_drafted(
        self, step: _Step, request: EngineRequest, drafts: tuple[int, ...], new_block_ids: list[list[int]]
    ) -> None:
        count = 1 + len(drafts)
        row = ScheduledRow(request.request_id, request.num_computed_tokens, count, new_block_ids, drafts)
        step.scheduled.append(row)
        step.budget -= count
        request.num_computed_tokens += count
        request.num_drafts, request.num_pending = len(drafts), count
        if request.guide is not None:
            step.masked.append(len(step.rows))
        step.rows.append((request, count))
        if request.num_computed_tokens >= (request.num_known_blocks + 1) * self.blocks.block_size:
            self.blocks.remember(request)

    def _make_room(self, blocks: int, request: EngineRequest) -> bool:
        """Preempt from the end until `blocks` are free. False if `request` itself was preempted."""
        while not self.blocks.pool.can_allocate(blocks):
            # The last one cannot be in this step yet.
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: EngineRequest) -> None:
        # `update` still appends pending tokens.
        self._queues.preempt(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1

    # ------------------------------------------------------------------------------------------- after the step

    def update(self, output: StepOutput) -> dict[str, list[RequestOutput]]:
        """Append the tokens of the oldest step in flight and return the outputs by frontend."""
        return self._results.update(self.in_flight.popleft(), output)

    def check_idle(self) -> None:
        waiting = len(self.waiting) + self.num_suspects
        assert self._stalled or not waiting, f"{waiting} requests wait without reason"
        assert self._stalled or not self.running, f"{len(self.running)} requests own a row without work"
        assert not self.in_flight, f"{len(self.in_flight)} steps were scheduled and never updated"
        self._queues.check_idle()
        if not self.running:
            self._results.check_idle()
