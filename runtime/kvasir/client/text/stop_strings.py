"""Stop strings: cuts a text at the first one, with the automaton of Aho and Corasick (1975).

Text is held back only while it may begin a stop string.
"""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """State 0 means that no character matches."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        # by state: the longest complete string
        self.found: list[str | None] = [None]
        # by state: last characters that may begin a string
        self.held: list[int] = [0]
        for string in strings:
            self._add(string)
        self._fallback = [0] * len(self._next)
        self._link()

    def step(self, state: int, char: str) -> int:
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
        # A fallback is the longest suffix, which is shorter: breadth first.
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            back = self._fallback[state]
            if self.found[state] is None:
                self.found[state] = self.found[back]
            if not self._next[state]:  # not the beginning of another string
                self.held[state] = self.held[back]
            for char, following in self._next[state].items():
                self._fallback[following] = self.step(back, char)
                states.append(following)


class StopSearch:
    def __init__(self, strings: StopStrings, include: bool) -> None:
        self._strings = strings
        self._include = include
        self._state = 0
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """Return the text to send now, cut if this sets `found`.

        Unless `may_end` (fewer than min_tokens), no string that is complete in this text counts.
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
        held, self._held = self._held, ""
        return held
