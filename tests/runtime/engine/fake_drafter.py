"""A drafter whose guesses a test chooses. It checks what the scheduler reports to it."""

from collections.abc import Callable, Sequence

from kvasir.engine.engine_request import EngineRequest, Guide
from runtime.engine.fake_executor import choose
from runtime.engine.fake_guides import FakeGuide


class FakeDrafter:
    def __init__(self) -> None:
        self.guess: Callable[[Sequence[int]], list[int]] | None = None
        """Guesses the tokens after these."""
        self.asked: set[EngineRequest] = set()
        """Live requests."""
        self.num_drafted = 0
        self.num_accepted = 0

    def wants(self, request: EngineRequest) -> bool:
        return self.guess is not None

    def propose(self, request: EngineRequest, most: int) -> Sequence[int]:
        assert most > 0
        assert not request.num_pending
        self.asked.add(request)
        if self.guess is None:
            return ()
        guesses = self.guess(request.token_ids)
        return guesses if request.guide is None else self._guided(request, request.guide.copy(), len(guesses))

    def _guided(self, request: EngineRequest, guide: Guide, count: int) -> list[int]:
        """Turn each guess into one that the guide allows, but at times not the last one."""
        assert isinstance(guide, FakeGuide)
        drafts: list[int] = []
        while len(drafts) < count and not guide.is_complete:
            tokens = [*request.token_ids, *drafts]
            guess = self.guess(tokens) if self.guess is not None else []
            token = choose(guess[0] if guess else len(tokens), guide.allowed)
            drafts.append(token)
            guide.accept([token])
        return [*drafts[:-1], 998] if drafts and request.num_tokens % 3 == 0 else drafts

    def verified(self, request: EngineRequest, drafted: int, accepted: int) -> None:
        assert request in self.asked
        assert 0 <= accepted <= drafted
        self.num_drafted += drafted
        self.num_accepted += accepted

    def ended(self, request: EngineRequest) -> None:
        self.asked.discard(request)
