"""Which tokens a request has and how often, for its penalties; one TokenCounts per penalised row, on the host."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]


class TokenCounts:
    """A request's distinct tokens and how often its output has each of them.

    Kept up to date token by token, so that a step costs a request the number of its distinct tokens and not its
    length or the vocabulary. Memory grows with the distinct tokens only.
    """

    def __init__(self, tokens: Tokens, num_prompt_tokens: int, with_prompt: bool) -> None:
        """`tokens` are prompt and output so far; without the prompt its tokens are left out, not counted as 0."""
        start = 0 if with_prompt else num_prompt_tokens
        ids, places = np.unique(tokens[start:], return_inverse=True)
        self._size = len(ids)
        self._ids = ids.astype(np.int64)
        self._counts = np.bincount(places[num_prompt_tokens - start :], minlength=self._size).astype(np.int64)
        self._place_of = {token: place for place, token in enumerate(ids.tolist())}
        self._seen = len(tokens)

    def after(self, tokens: Tokens) -> tuple[Ints, Ints]:
        """[D] distinct tokens and [D] their counts in the output; `tokens` are the earlier ones and new ones."""
        for token in tokens[self._seen :].tolist():
            place = self._place(token)  # first: the arrays may be exchanged for longer ones
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
