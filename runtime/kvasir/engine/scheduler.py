"""Decides each step which requests compute how many tokens; owned and driven by EngineCore.

There are no prefill and decode phases: a step has a budget of tokens, and every request has tokens that are known
and not yet computed: many after its arrival, one while it generates. Running requests are served first, in the
order of their arrival; what is left of the budget admits waiting ones, and a prompt longer than that is cut into
chunks over several steps (the scheduling of Sarathi-Serve and of vLLM V1).

Blocks. A request gets the blocks for all tokens it has when it is admitted, and one more whenever it outgrows them.
If none is free, the youngest running request is preempted: it loses row and blocks, keeps its tokens, and waits at
the head of the queue to be computed again.

Two properties follow from admitting in order and from max_num_seqs ≤ max_num_batched_tokens: only the youngest
running request can be in the middle of its prompt, and every running request gets at least one token in each step.
"""

from collections import deque
from collections.abc import Collection

from kvasir.engine.block_pool import BlockPool
from kvasir.engine.gates import BlockGate, Gate, RowGate
from kvasir.engine.request import FINISH_REASONS, EngineRequest, RequestStatus
from kvasir.protocol import RequestOutput
from kvasir.worker.step import NO_TOKEN, NewRow, ScheduledRow, StepInput, StepOutput


class RequestRefused(ValueError):
    """The request can never be computed here; the message is for its client."""


class Scheduler:
    """Requests from `add` to their end, by id in `requests`; each is in `waiting` or in `running`."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: Collection[int],
    ) -> None:
        if max_num_seqs > max_num_batched_tokens:
            raise ValueError("a step's budget must hold one token of each running request")
        if max_model_len > longest_sequence(pool.num_blocks, block_size):
            raise ValueError("the pool must hold one request of the longest kind")
        self.requests: dict[str, EngineRequest] = {}
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        self.pool = pool
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        """Prompt tokens computed since the start, each request's once."""
        self.num_generated_tokens = 0
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._gates: tuple[Gate, ...] = (
            RowGate(self.running, max_num_seqs),
            BlockGate(pool, self.running, block_size),
        )
        self._freed_rows: list[str] = []  # ids whose rows the worker still has to free
        self._in_step: list[EngineRequest] = []  # the requests of the step that is computed, in its order

    # ------------------------------------------------------------------------------------------ coming and going

    def add(self, request: EngineRequest) -> RequestOutput | None:
        """Queue the request. One that is complete already (resumed at its limit) is answered here instead.

        Raises RequestRefused.
        """
        if request.num_prompt_tokens == 0:
            raise RequestRefused("the prompt has no tokens")
        if request.num_output_tokens:
            status = self._status_after(request, request.token_ids[-1])
            if status.finished:
                request.status = status
                return self._output(request, request.num_output_tokens, [])
        elif request.num_prompt_tokens >= self._max_model_len:
            raise RequestRefused(
                f"the prompt has {request.num_prompt_tokens} tokens and this engine holds {self._max_model_len} "
                "of prompt and output together: shorten the prompt"
            )
        self.requests[request.request_id] = request
        self.waiting.append(request)
        return None

    def abort(self, request: EngineRequest) -> None:
        """Forget the request, in whichever state it is; no output follows for it."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, RequestStatus.ABORTED)

    @property
    def has_work(self) -> bool:
        """Rows that the worker still has to free count: without a step they would be taken for ever."""
        return bool(self.requests) or bool(self._freed_rows)

    # ------------------------------------------------------------------------------------------ before the step

    def schedule(self) -> StepInput:
        """The next step. Its requests count as computed from here on; `update` adds what was sampled."""
        self._in_step = []
        scheduled: list[ScheduledRow] = []
        preemptions = self.num_preemptions
        budget = self._schedule_running(scheduled, self._max_num_batched_tokens)
        new = self._admit_waiting(scheduled, budget) if self.num_preemptions == preemptions else []
        finished, self._freed_rows = self._freed_rows, []
        return StepInput(finished=finished, new=new, scheduled=scheduled)

    def _schedule_running(self, scheduled: list[ScheduledRow], budget: int) -> int:
        """Give every running request its tokens, oldest first; returns what is left of the budget."""
        index = 0
        while index < len(self.running):  # grows shorter where requests are preempted from its end
            request = self.running[index]
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            missing = self._blocks_for(request.num_computed_tokens + count) - len(request.block_ids)
            while not self.pool.can_allocate(missing):
                if self._preempt_youngest() is request:
                    return budget
            scheduled.append(self._take(request, count, self.pool.allocate(missing) if missing > 0 else []))
            budget -= count
            index += 1
        return budget

    def _admit_waiting(self, scheduled: list[ScheduledRow], budget: int) -> list[NewRow]:
        """Move requests from the head of the queue into rows while the budget and every gate allow it."""
        new: list[NewRow] = []
        while self.waiting and budget > 0:
            request = self.waiting[0]
            if not all(gate.admits(request) for gate in self._gates):
                break  # nobody overtakes: a long request would starve
            self.waiting.popleft()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            new.append(request.new_row())
            count = min(request.num_tokens, budget)
            blocks = self.pool.allocate(self._blocks_for(request.num_tokens))
            scheduled.append(self._take(request, count, blocks))
            budget -= count
        return new

    def _take(self, request: EngineRequest, count: int, new_block_ids: list[int]) -> ScheduledRow:
        row = ScheduledRow(request.request_id, request.num_computed_tokens, count, new_block_ids)
        request.block_ids += new_block_ids
        request.num_computed_tokens += count
        self._in_step.append(request)
        return row

    def _preempt_youngest(self) -> EngineRequest:
        """The youngest has not been scheduled in this step: requests are served oldest first."""
        victim = self.running.pop()
        self._give_up_row(victim)
        victim.num_computed_tokens = 0
        victim.status = RequestStatus.PREEMPTED
        self.waiting.appendleft(victim)
        self.num_preemptions += 1
        return victim

    # ------------------------------------------------------------------------------------------- after the step

    def update(self, output: StepOutput) -> dict[str, list[RequestOutput]]:
        """Append what was sampled and end what is complete; the outputs are grouped by frontend.

        Requests that were aborted since `schedule` are passed over: an abort taken before this call leaves no
        output behind it.
        """
        outputs: dict[str, list[RequestOutput]] = {}
        some_finished = False
        for request, token_id in zip(self._in_step, output.token_ids, strict=True):
            if request.status.finished:
                continue
            caught_up = request.num_computed_tokens == request.num_tokens
            if caught_up != (token_id != NO_TOKEN):
                raise RuntimeError(
                    f"the worker returned token {token_id} for a request with {request.num_computed_tokens} of "
                    f"{request.num_tokens} tokens computed"
                )
            if not caught_up:
                continue
            position = request.num_output_tokens
            request.token_ids.append(token_id)
            self._count(request)
            status = self._status_after(request, token_id)
            if status.finished:
                self._finish(request, status)
                some_finished = True
            outputs.setdefault(request.frontend, []).append(self._output(request, position, [token_id]))
        self._in_step = []
        if some_finished:
            self.running[:] = [request for request in self.running if not request.status.finished]
        return outputs

    def check_idle(self) -> None:
        """Raises AssertionError where anything is left although there is no work."""
        assert not self.requests, f"{len(self.requests)} requests are live"
        assert not self.waiting, f"{len(self.waiting)} requests wait and none is live"
        assert not self.running, f"{len(self.running)} requests own a row and none is live"
        assert not self._freed_rows, f"{len(self._freed_rows)} rows were never freed in the worker"
        self.pool.check_all_free()

    # --------------------------------------------------------------------------------------------------- pieces

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _status_after(self, request: EngineRequest, token_id: int) -> RequestStatus:
        """The status that the request has once this token, its last one, is appended."""
        params = request.params
        if token_id in self._eos_token_ids and not params.ignore_eos:
            return RequestStatus.STOPPED
        if token_id in params.stop_token_ids:
            return RequestStatus.STOPPED
        if request.num_output_tokens >= params.max_tokens or request.num_tokens >= self._max_model_len:
            return RequestStatus.LENGTH
        return request.status

    def _output(self, request: EngineRequest, position: int, token_ids: list[int]) -> RequestOutput:
        if not request.status.finished:
            return RequestOutput(request.request_id, request.attempt, position, token_ids)
        return RequestOutput(
            request_id=request.request_id,
            attempt=request.attempt,
            position=position,
            token_ids=token_ids,
            finish_reason=FINISH_REASONS[request.status],
            stop_token_id=self._stop_token(request),
        )

    def _stop_token(self, request: EngineRequest) -> int | None:
        """The token of `stop_token_ids` that ended the request; None where an end-of-sequence token did."""
        token_id = request.token_ids[-1]
        by_eos = token_id in self._eos_token_ids and not request.params.ignore_eos
        return token_id if request.status is RequestStatus.STOPPED and not by_eos else None

    def _finish(self, request: EngineRequest, status: RequestStatus) -> None:
        if request.status is RequestStatus.RUNNING:
            self._give_up_row(request)
        request.status = status
        del self.requests[request.request_id]

    def _give_up_row(self, request: EngineRequest) -> None:
        self.pool.free(request.block_ids)
        request.block_ids = []
        self._freed_rows.append(request.request_id)

    def _count(self, request: EngineRequest) -> None:
        self.num_generated_tokens += 1
        if not request.prompt_counted:
            request.prompt_counted = True
            self.num_prompt_tokens += request.num_prompt_tokens


def longest_sequence(num_blocks: int, block_size: int) -> int:
    """Tokens that a request can reach alone in the pool: the last token is emitted and needs no KV."""
    return num_blocks * block_size + 1
