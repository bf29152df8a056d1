"""Counts the tokens of the reasoning."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

MARK_TOKENS: Final = 64
"""The end mark stands in the tokens of the piece that shows it, and in this many before them: its text may
have been held back, because it could have been the beginning of a stop string."""


class ReasoningCount:
    """Counts tokens up to the end mark; all that come with reasoning, if the tokens of the mark are not found."""

    def __init__(
        self,
        end_ids: frozenset[int] = frozenset(),
        *,
        repeats: bool = False,
        find_end: Callable[[Sequence[int]], int | None] | None = None,
    ) -> None:
        """`end_ids`: the end marks that are one token each. `repeats`: there may be more reasoning later.

        `find_end`: for end marks of several tokens; returns how many tokens there are up to the end of one, or None
        if there is none.
        """
        self.tokens = 0
        self.is_reasoning = False
        """The parser is inside the reasoning, or may be. The state machine sets it."""
        self._end_ids = end_ids
        self._repeats = repeats
        self._find_end = find_end
        self._latest: list[int] = []
        """Tokens before the piece that may belong to the end mark, when that is several tokens."""
        self._is_over = False
        self._before = 0
        self._is_undone = False

    def begin(self) -> None:
        """The next text may be reasoning; `undo` withdraws that."""
        self.is_reasoning = True
        self._before = self.tokens

    def end(self) -> None:
        """The reasoning has ended."""
        self.is_reasoning = False

    def undo(self) -> None:
        """The text since `begin` is not reasoning."""
        self.is_reasoning = False
        self.tokens = self._before
        self._is_undone = True

    def add(self, token_ids: Sequence[int], was_reasoning: bool) -> None:
        """Count the tokens of the last piece. `was_reasoning`: as it was before the piece."""
        if self._is_undone or self._is_over or not (was_reasoning or self.is_reasoning):
            self._is_over = self._is_over or (self._is_undone and not self._repeats)
            self._is_undone = False
            return
        for token_id in token_ids:
            self.tokens += 1
            if token_id in self._end_ids:
                self._is_over = not self._repeats
                return
        self._is_over = not (self.is_reasoning or self._repeats)
        if self._find_end is not None:
            self._search(self._find_end, token_ids)

    def _search(self, find_end: Callable[[Sequence[int]], int | None], token_ids: Sequence[int]) -> None:
        tokens = [*self._latest, *token_ids]
        self._latest = tokens[-MARK_TOKENS:]
        if self._is_over and (end := find_end(tokens)) is not None:
            self.tokens -= len(tokens) - end


def end_of_mark(
    decode: Callable[[Sequence[int]], str], marks: Sequence[str], token_ids: Sequence[int]
) -> int | None:
    """Return how many of the tokens have a text with one of the marks, or None if it is not in all of them."""

    def has_mark(count: int) -> bool:
        text = decode(token_ids[:count])
        return any(mark in text for mark in marks)

    if not has_mark(len(token_ids)):
        return None
    return bisect_left(range(len(token_ids)), True, key=has_mark)
