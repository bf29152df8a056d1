"""Counts reasoning tokens."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

# An end mark may begin this many tokens before the piece that completes it, because text that may begin a stop
# string is held back.
MARK_TOKENS: Final = 64


class ReasoningCount:
    """Counts tokens up to the end mark or, if its tokens are not found, the piece that shows it."""

    def __init__(
        self,
        end_ids: frozenset[int] = frozenset(),
        *,
        repeats: bool = False,
        find_end: Callable[[Sequence[int]], int | None] | None = None,
    ) -> None:
        """`end_ids`: end marks of one token. `repeats`: more reasoning may follow. `find_end`: returns the number
        of tokens up to the end of a mark of several, or None.
        """
        self.tokens = 0
        self.is_reasoning = False  # or may be
        self._end_ids = end_ids
        self._repeats = repeats
        self._find_end = find_end
        # the last MARK_TOKENS tokens, for `find_end`
        self._latest: list[int] = []
        self._is_over = False
        self._before = 0
        self._is_undone = False

    def begin(self) -> None:
        """Count the next text as reasoning, unless `undo` follows."""
        self.is_reasoning = True
        self._before = self.tokens

    def end(self) -> None:
        self.is_reasoning = False

    def undo(self) -> None:
        """Discard the count since `begin`."""
        self.is_reasoning = False
        self.tokens = self._before
        self._is_undone = True

    def add(self, token_ids: Sequence[int], was_reasoning: bool) -> None:
        """Count the tokens of the last piece. `was_reasoning`: `is_reasoning` before it."""
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
    """Return the number of tokens up to the end of the first mark, or None."""

    def has_mark(count: int) -> bool:
        text = decode(token_ids[:count])
        return any(mark in text for mark in marks)

    if not has_mark(len(token_ids)):
        return None
    return bisect_left(range(len(token_ids)), True, key=has_mark)
