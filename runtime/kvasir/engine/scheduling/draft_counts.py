"""DraftCounts: how many guessed tokens were verified, and how many of them were right."""

from kvasir.link.protocol import DraftStats


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
