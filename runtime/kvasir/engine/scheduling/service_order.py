"""Requests in the order they are served: the smallest rank (priority, arrival) first. Used by the scheduler, for
the requests that wait and for those that run.

A sorted list: the next request and the one to preempt stand at its ends, and an abort finds its request by rank.
First come, first served is the case where all priorities are equal, and then everything happens at the ends.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from kvasir.engine.scheduling.engine_request import EngineRequest


class ServiceOrder:
    """No two requests have one rank."""

    def __init__(self) -> None:
        self._requests: list[EngineRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[EngineRequest]:
        return iter(self._requests)

    def __getitem__(self, place: int) -> EngineRequest:
        return self._requests[place]

    def add(self, request: EngineRequest) -> None:
        insort(self._requests, request, key=_rank)

    def remove(self, request: EngineRequest) -> None:
        place = bisect_left(self._requests, request.rank, key=_rank)
        assert self._requests[place] is request, f"request {request.request_id} is not where its rank is"
        del self._requests[place]


def _rank(request: EngineRequest) -> tuple[int, int]:
    return request.rank
