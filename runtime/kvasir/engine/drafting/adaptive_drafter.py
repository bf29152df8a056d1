"""AdaptiveDrafter: a Drafter that takes guesses from a source, and fewer of them while few are right."""

from collections.abc import Sequence
from typing import Protocol

from kvasir.engine.drafting.draft_length import DraftLength
from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.drafter import Drafter


class GuessSource(Protocol):
    def guess(self, request: EngineRequest, most: int) -> Sequence[int]:
        """Return up to `most` tokens that may follow the known ones."""
        ...

    def ended(self, request: EngineRequest) -> None: ...


class AdaptiveDrafter(Drafter):
    def __init__(self, source: GuessSource, most: int) -> None:
        self._source = source
        self._most = most
        self._lengths: dict[EngineRequest, DraftLength] = {}

    def wants(self, request: EngineRequest) -> bool:
        # If the known tokens have been seen before, the pending one probably continues them.
        return self._length(request) > 0 and len(self._source.guess(request, 2)) == 2

    def propose(self, request: EngineRequest, most: int) -> Sequence[int]:
        most = min(most, self._length(request))
        return self._source.guess(request, most) if most else ()

    def verified(self, request: EngineRequest, drafted: int, accepted: int) -> None:
        if (length := self._lengths.get(request)) is not None and drafted:
            length.verified(drafted, accepted, request.num_tokens)

    def ended(self, request: EngineRequest) -> None:
        self._lengths.pop(request, None)
        self._source.ended(request)

    def _length(self, request: EngineRequest) -> int:
        length = self._lengths.get(request)
        if length is None:
            length = self._lengths[request] = DraftLength(self._most)
        return length.at(request.num_tokens)
