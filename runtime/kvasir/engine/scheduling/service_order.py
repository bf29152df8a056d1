"""ServiceOrder: requests sorted by (priority, seniority, arrival); the smallest is served first."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from kvasir.engine.engine_request import EngineRequest


class ServiceOrder:
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
        assert self._requests[place] is request, f"request {request.request_id} is not at its place in the order"
        del self._requests[place]

    def pop_first(self, count: int | None) -> list[EngineRequest]:
        first = self._requests[:count]
        del self._requests[:count]
        return first


def _rank(request: EngineRequest) -> tuple[int, float, int]:
    return request.rank
