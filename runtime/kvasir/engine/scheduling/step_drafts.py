"""StepDrafts: chooses the drafts of each row of a step, so that they take nothing that another row needs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from kvasir.engine.engine_request import EngineRequest, Guide
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.engine.scheduling.endings import Endings
from kvasir.link.protocol import DraftStats


class Drafter(Protocol):
    """Called in the engine's loop, for each request that decodes: keep it at O(drafts) per call.

    Decide by the requests' tokens alone, without clocks or chance: all processes of an engine must decide alike.
    """

    def wants(self, request: EngineRequest) -> bool:
        """Return whether the request should wait for its pending token, so that `propose` can follow it.

        Asked only if steps overlap: the request then leaves out the next step.
        """
        ...

    def propose(self, request: EngineRequest, most: int) -> Sequence[int]:
        """Return up to `most` (at least 1) guesses of the tokens after `request.token_ids`."""
        # No token is pending. Some or all guesses may go unused.
        ...

    def verified(self, request: EngineRequest, drafted: int, accepted: int) -> None:
        """Note that the model accepted the first `accepted` of `drafted` guesses.

        `request.token_ids` gets them, and one token more, after this call.
        """
        ...

    def ended(self, request: EngineRequest) -> None:
        """Forget the request: finished or aborted, drafted or not. Its tokens are still there."""
        ...


class DraftCounts:
    def __init__(self) -> None:
        self._num_drafts = 0
        self._num_tokens = 0
        self._accepted: list[int] = []  # by place

    def verified(self, drafted: int, accepted: int) -> None:
        self._num_drafts += 1
        self._num_tokens += drafted
        self._accepted += [0] * (drafted - len(self._accepted))
        for place in range(accepted):
            self._accepted[place] += 1

    def stats(self) -> DraftStats:
        return DraftStats(self._num_drafts, self._num_tokens, tuple(self._accepted))


@dataclass(frozen=True)
class Drafting:
    """How a scheduler drafts. A step with more running requests than either limit has no drafts."""

    drafter: Drafter
    max_step_rows: int  # drafts and running requests
    max_running: int | None = None


class StepDrafts(AdmissionGate):
    """A gate that admits every request, because gates are called when requests end."""

    def __init__(self, drafting: Drafting, endings: Endings, blocks: KVManager) -> None:
        self.counts = DraftCounts()
        self._drafter = drafting.drafter
        self._max_step_rows = drafting.max_step_rows
        self._max_running = drafting.max_running or drafting.max_step_rows
        self._endings = endings
        self._blocks = blocks
        self._num_running = 0
        self._num_left = 0  # drafts that fit into the step
        self._num_asked = 0  # requests of this step

    def step_begins(self, num_running: int) -> bool:
        """Return whether rows of this step may have drafts."""
        self._num_running = num_running
        self._num_left = self._max_step_rows - num_running
        self._num_asked = 0
        return 0 < num_running <= self._max_running and self._num_left > 0

    def awaits(self, request: EngineRequest) -> bool:
        """Return whether the request leaves out a step, to be drafted when its pending token is known."""
        return request.num_pending > 0 and self._drafter.wants(request)

    def choose(self, request: EngineRequest, budget: int) -> tuple[int, ...]:
        """Return the drafts of a request that decodes. `budget`: tokens of the step, the known one included."""
        # What a request leaves is shared by those after it.
        share = -(-self._num_left // max(1, self._num_running - self._num_asked))
        self._num_asked += 1
        most = min(share, budget - 1, self._endings.num_left(request) - 1)
        if most <= 0:
            return ()
        drafts = tuple(islice(self._drafter.propose(request, most), most))
        if drafts and request.guide is not None:
            drafts = _allowed(request.guide, drafts)
        if not drafts or not self._has_room(request, len(drafts)):
            return ()
        self._num_left -= len(drafts)
        return drafts

    def verified(self, request: EngineRequest, drafted: int, accepted: int) -> None:
        self.counts.verified(drafted, accepted)
        self._drafter.verified(request, drafted, accepted)

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.ADMIT

    def ended(self, request: EngineRequest) -> None:
        self._drafter.ended(request)

    def _has_room(self, request: EngineRequest, drafts: int) -> bool:
        # without a block that the next token of another running request may need
        end = request.num_tokens + drafts
        if end <= request.num_slots:
            return True
        reserve = len(request.block_tables) * (self._num_running - 1)
        return self._blocks.pool.can_allocate(sum(self._blocks.missing(request, end)) + reserve)


def _allowed(guide: Guide, drafts: Sequence[int]) -> tuple[int, ...]:
    count = 0
    with suppress(Exception):  # a forbidden draft, or a defect: the next mask fails too and ends the request
        ahead = guide.copy()
        while count < len(drafts) and not ahead.is_complete:
            ahead.accept((drafts[count],))
            count += 1
    return tuple(drafts[:count])
