"""StepResults: appends the tokens of a step to its requests and makes their outputs."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from kvasir.engine.engine_request import EngineRequest, Guide, RequestStatus
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.endings import Endings
from kvasir.engine.scheduling.request_queues import RequestQueues
from kvasir.engine.scheduling.step_drafts import StepDrafts
from kvasir.link.protocol import Logprobs, RequestOutput
from kvasir.worker.step import NAN_COMPUTED, NO_TOKENS, StepOutput

# the request of each scheduled row, and its most tokens: 0, 1, or 1 + drafts
StepRows: TypeAlias = list[tuple[EngineRequest, int]]
MAX_FORCED_TOKENS: Final = 16
# per update: a forced token costs FORCING_COST and the tokens of its whole text
FORCING_BUDGET: Final = 4_096
FORCING_COST: Final = 64


class StepResults:
    def __init__(
        self,
        endings: Endings,
        queues: RequestQueues,
        blocks: KVManager,
        keeps_sampled: bool = False,
        drafts: StepDrafts | None = None,
    ) -> None:
        self.num_prompt_tokens = 0  # once per request that generates
        self.num_cached_prompt_tokens = 0  # in the prefix cache
        self.num_generated_tokens = 0
        self.num_corrupted_requests = 0  # whose logits were NaN
        self._keeps_sampled = keeps_sampled
        self._drafts = drafts
        self._sampled = NO_TOKENS
        self._forced = NO_TOKENS
        self._forcing_budget = 0
        self._endings = endings
        self._queues = queues
        self._blocks = blocks

    def update(self, rows: StepRows, output: StepOutput) -> dict[str, list[RequestOutput]]:
        outputs: dict[str, list[RequestOutput]] = {}
        failed, pooled = output.failed, output.pooled
        self._forcing_budget = FORCING_BUDGET
        for place, ((request, most), token_ids) in enumerate(zip(rows, output.token_ids, strict=True)):
            request.num_pending -= most
            if request.status.finished:
                # Finished, but its blocks are in the prefix cache.
                if failed and failed.get(place) == NAN_COMPUTED:
                    self._blocks.distrust(request)
                continue
            if failed and place in failed:
                answer = self._fail(request, failed[place])
            elif pooled and place in pooled:
                answer = self._end_pooled(request, pooled[place])
            else:
                if not len(token_ids) == most <= 1:
                    self._settle_drafts(request, most, len(token_ids))
                if not most:
                    continue
                answer = self._append(request, token_ids, output, place)
            outputs.setdefault(request.frontend, []).append(answer)
        if self._keeps_sampled:
            self._keep_sampled(rows, output.token_ids)
        return outputs

    def take_tokens(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Return sampled and forced tokens since the last call, by request."""
        # The next step must carry them: it may free their rows.
        taken = self._sampled, self._forced
        self._sampled = self._forced = NO_TOKENS
        return taken

    def check_idle(self) -> None:
        kept = len(self._sampled) + len(self._forced)
        assert not kept, f"tokens of {kept} requests were never sent to the workers"

    def _append(
        self, request: EngineRequest, token_ids: list[int], output: StepOutput, place: int
    ) -> RequestOutput:
        position = request.num_output_tokens
        if request.guide is None:
            request.token_ids.append(token_ids[0])
            status = self._endings.status_of(request)
            if len(token_ids) > 1:
                token_ids, status = self._append_rest(request, token_ids, status)
        else:
            try:
                token_ids, status = self._append_guided(request, request.guide, token_ids)
            except Exception as error:  # a defect must end this request only
                del request.token_ids[request.num_prompt_tokens + position :]
                return self._leave_grammar(request, error)
        if request.guide is not None and not status.finished:
            token_ids, status = self._append_forced(request, token_ids, status)
        self.num_generated_tokens += len(token_ids)
        is_first = not request.prompt_counted
        if is_first:
            request.prompt_counted = True
            self.num_prompt_tokens += request.num_prompt_tokens
            self.num_cached_prompt_tokens += request.num_cached_tokens or 0
        if status.finished:
            self._queues.finish(request, status)
        elif not (is_first or output.logprobs or request.num_preemptions):
            return RequestOutput(request.request_id, request.attempt, position, token_ids)
        return self._endings.output(
            request,
            position,
            token_ids,
            logprobs=_first(output.logprobs.get(place), len(token_ids)),
            prompt_logprobs=output.prompt_logprobs.get(place) if position == 0 else None,
            num_cached_tokens=request.num_cached_tokens if is_first else None,
        )

    def _end_pooled(self, request: EngineRequest, vector: bytes) -> RequestOutput:
        request.prompt_counted = True
        self.num_prompt_tokens += request.num_prompt_tokens
        self._queues.finish(request, RequestStatus.STOPPED)
        return self._endings.output(request, 0, [], num_cached_tokens=0, pooled=vector)

    def _fail(self, request: EngineRequest, failure: str) -> RequestOutput:
        if failure == NAN_COMPUTED:
            self._blocks.distrust(request)
            self.num_corrupted_requests += 1
        self._queues.finish(request, RequestStatus.ABORTED)
        return self._endings.broken_off(request, failure)

    def _leave_grammar(self, request: EngineRequest, error: Exception) -> RequestOutput:
        self._queues.finish(request, RequestStatus.ABORTED)
        return self._endings.left_grammar(request, error)

    def _settle_drafts(self, request: EngineRequest, most: int, sampled: int) -> None:
        """Subtract the rejected drafts: their KV is overwritten later."""
        if not 0 < sampled <= most:
            raise RuntimeError(
                f"the worker returned {sampled} tokens, and at most {most} were due, for a request with "
                f"{request.num_computed_tokens} of {request.num_tokens} tokens computed"
            )
        if request.num_drafts and self._drafts is not None:
            self._drafts.verified(request, request.num_drafts, min(sampled - 1, request.num_drafts))
        request.num_drafts = 0
        if request.status is RequestStatus.RUNNING:  # otherwise it starts from 0
            request.num_computed_tokens -= most - sampled

    def _keep_sampled(self, rows: StepRows, token_ids: Sequence[list[int]]) -> None:
        # Preempted requests get a new row with their tokens.
        if self._sampled is NO_TOKENS:
            self._sampled = {}
        for (request, _), sampled in zip(rows, token_ids, strict=True):
            if sampled and request.status is RequestStatus.RUNNING:
                self._sampled[request.request_id] = sampled

    def _append_rest(
        self, request: EngineRequest, token_ids: list[int], status: RequestStatus
    ) -> tuple[list[int], RequestStatus]:
        count = 1
        while count < len(token_ids) and not status.finished:
            request.token_ids.append(token_ids[count])
            count += 1
            status = self._endings.status_of(request)
        return token_ids[:count], status

    def _append_guided(
        self, request: EngineRequest, guide: Guide, token_ids: list[int]
    ) -> tuple[list[int], RequestStatus]:
        status, count = request.status, 0
        while count < len(token_ids) and not status.finished:
            guide.accept(token_ids[count : count + 1])
            request.token_ids.append(token_ids[count])
            count += 1
            status = self._endings.status_of(request)
        return token_ids[:count], status

    def _append_forced(
        self, request: EngineRequest, token_ids: list[int], status: RequestStatus
    ) -> tuple[list[int], RequestStatus]:
        """Append tokens while only one may follow: the next step computes them together."""
        guide = request.guide
        # Steps in flight sample the next token, and log probabilities need logits.
        if guide is None or request.num_pending or request.is_suspect or request.params.logprobs is not None:
            return token_ids, status
        forced: list[int] = []
        while not status.finished and len(forced) < MAX_FORCED_TOKENS:
            try:
                token = self._only_token(guide)
                if token is None:
                    break
                guide.accept([token])
            except Exception:
                break  # the next mask fails too and ends the request
            forced.append(token)
            request.token_ids.append(token)
            status = self._endings.status_of(request)
        if forced and status is RequestStatus.RUNNING:  # else in its new row
            if self._forced is NO_TOKENS:
                self._forced = {}
            self._forced[request.request_id] = forced
        return [*token_ids, *forced], status

    def _only_token(self, guide: Guide) -> int | None:
        """Return the only token that may follow; None when the budget is spent."""
        # Not a clock: all processes of an engine must decide alike.
        if self._forcing_budget <= 0:
            return None
        forced = guide.forced_tokens()
        self._forcing_budget -= FORCING_COST + len(forced)
        return forced[0] if forced else None


def _first(logprobs: Logprobs | None, count: int) -> Logprobs | None:
    if logprobs is None or len(logprobs.token) == count:
        return logprobs
    return Logprobs(logprobs.token[:count], logprobs.rank[:count], logprobs.top_ids[:count], logprobs.top[:count])
