"""Stop strings: finds the first one that is complete in the text of a request, and cuts the text there.

StopStrings is the automaton of Aho and Corasick ("Efficient string matching", 1975), built once per request body:
each character takes one or two steps, for any number and length of strings. The output processor pushes the text of
each request through a StopSearch.

The string that is complete first ends the text. If several are complete at the same character, the longest one
counts, so that no part of any of them remains. Text is held back only while it may be the beginning of a stop
string, so it is at most one character shorter than the longest string.
"""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton; read-only, shared by the choices of a request. State 0 means that no character matches."""

    def __init__(self, strings: Sequence[str]) -> None:
        """The strings must not be empty."""
        self._next: list[dict[str, int]] = [{}]
        self.found: list[str | None] = [None]
        """By state: the longest string that is complete in it."""
        self.held: list[int] = [0]
        """By state: number of characters at the end of the text that may be the beginning of a string."""
        for string in strings:
            self._add(string)
        self._fallback = [0] * len(self._next)
        self._link()

    def step(self, state: int, char: str) -> int:
        """Return the state after one more character."""
        while (after := self._next[state].get(char)) is None:
            if state == 0:
                return 0
            state = self._fallback[state]
        return after

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            following = self._next[state].setdefault(char, len(self._next))
            if following == len(self._next):
                self._next.append({})
                self.found.append(None)
                self.held.append(self.held[state] + 1)
            state = following
        self.found[state] = string

    def _link(self) -> None:
        """Set the fallback of each state: its longest suffix. Breadth first, because suffixes are shorter."""
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            back = self._fallback[state]
            if self.found[state] is None:
                self.found[state] = self.found[back]
            if not self._next[state]:  # a complete string that is not the beginning of another
                self.held[state] = self.held[back]
            for char, following in self._next[state].items():
                self._fallback[following] = self.step(back, char)
                states.append(following)


class StopSearch:
    """The search in the text of one request. It is over when `found` is set."""

    def __init__(self, strings: StopStrings, include: bool) -> None:
        """`include`: keep the stop string in the text."""
        self._strings = strings
        self._include = include
        self._state = 0
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """Return the text that can be sent now. If this sets `found`, the text is cut at the stop string.

        If `may_end` is false (fewer than min_tokens), a string that is complete in this text does not count. One
        that begins in it and ends later does.
        """
        strings, state = self._strings, self._state
        window = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            state = strings.step(state, char)
            if may_end and (found := strings.found[state]) is not None:
                self.found, self._held = found, ""
                return window[: end if self._include else end - len(found)]
        self._state = state
        sent = len(window) - strings.held[state]
        self._held = window[sent:]
        return window[:sent]

    def finish(self) -> str:
        """Return the text that was held back, at the end of the request."""
        held, self._held = self._held, ""
        return held
