"""Rations limit a step besides its token budget."""

from typing import Protocol

from kvasir.engine.engine_request import EngineRequest, RequestStatus


class Ration(Protocol):
    """A request that gets nothing keeps its row and blocks."""

    def step_begins(self, num_running: int, num_waiting: int) -> None: ...

    def most(self, request: EngineRequest, count: int) -> int:
        """Return how many of the next `count` tokens may join; 0 for a waiting request ends admission."""
        ...

    def joined(self, request: EngineRequest, count: int) -> None: ...


class StageRation:
    """Spreads the sampling rows over the stages: 7 rows over 3 stages join as 3, 2 and 2."""

    # Otherwise all would join the first step and wait for its tokens together.

    def __init__(self, num_stages: int, max_num_seqs: int) -> None:
        self._num_stages = num_stages
        self._max_num_seqs = max_num_seqs
        self._of_running = 0
        self._of_all = 0
        self._num_joined = 0
        self._place = 0  # of the step; the first ones take the remainder
        self._has_tokens = False

    def step_begins(self, num_running: int, num_waiting: int) -> None:
        if self._has_tokens:  # else the step before was not submitted
            self._place = (self._place + 1) % self._num_stages
        self._of_running = self._share(num_running)
        self._of_all = self._share(min(num_running + num_waiting, self._max_num_seqs))
        self._num_joined = 0
        self._has_tokens = False

    def most(self, request: EngineRequest, count: int) -> int:
        share = self._of_running if request.status is RequestStatus.RUNNING else self._of_all
        return 0 if self._num_joined >= share and _samples(request, count) else count

    def joined(self, request: EngineRequest, count: int) -> None:
        self._num_joined += _samples(request, count)
        self._has_tokens = True

    def _share(self, requests: int) -> int:
        # At least 1: there may be fewer requests than stages.
        size, remainder = divmod(requests, self._num_stages)
        return max(1, size + (self._place < remainder))


class WholePrompts:
    """Requests that pool are computed in one step each: without KV, a later chunk could not read an earlier one."""

    def step_begins(self, num_running: int, num_waiting: int) -> None:
        return

    def most(self, request: EngineRequest, count: int) -> int:
        return count if _samples(request, count) else 0

    def joined(self, request: EngineRequest, count: int) -> None:
        return


def _samples(request: EngineRequest, count: int) -> bool:
    return request.num_computed_tokens + count >= request.num_tokens + request.num_pending
