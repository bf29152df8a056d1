"""TokenCounts: the distinct tokens of a penalised row and their counts."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]


class TokenCounts:
    def __init__(self, tokens: Tokens, num_prompt_tokens: int, with_prompt: bool) -> None:
        # prompt and output, or the output alone
        start = 0 if with_prompt else num_prompt_tokens
        ids, places = np.unique(tokens[start:], return_inverse=True)
        self._size = len(ids)
        self._ids = ids.astype(np.int64)
        self._counts = np.bincount(places[num_prompt_tokens - start :], minlength=self._size).astype(np.int64)
        self._place_of = {token: place for place, token in enumerate(ids.tolist())}
        self._seen = len(tokens)

    def after(self, tokens: Tokens) -> tuple[Ints, Ints]:
        """Return [D] tokens and [D] their counts in the output."""
        for token in tokens[self._seen :].tolist():
            place = self._place(token)  # may replace the arrays by longer ones
            self._counts[place] += 1
        self._seen = len(tokens)
        return self._ids[: self._size], self._counts[: self._size]

    def _place(self, token: int) -> int:
        place = self._place_of.get(token)
        if place is not None:
            return place
        place = self._place_of[token] = self._size
        if place == len(self._ids):
            room = np.zeros(max(16, place), np.int64)
            self._ids = np.concatenate((self._ids, room))
            self._counts = np.concatenate((self._counts, room))
        self._ids[place] = token
        self._size += 1
        return place


def counts_with(ids: Ints, counts: Ints, drafts: Tokens) -> tuple[Ints, Ints]:
    """Return tokens and counts as if the output went on with `drafts`. Leaves the arrays as they are."""
    new = np.setdiff1d(drafts, ids)
    ids, counts = np.concatenate((ids, new)), np.concatenate((counts, np.zeros(len(new), np.int64)))
    for token in drafts.tolist():
        counts[ids == token] += 1
    return ids, counts
