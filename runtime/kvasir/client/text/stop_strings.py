"""Stop strings: where in the text of a request the first of them is complete, and what may be told before that.

The StopStrings of a request body become, once, the automaton of Aho and Corasick ("Efficient string matching",
1975): each character costs a step or two, however many and long the strings are. The output processor pushes the
text of each request through a StopSearch.

The string that completes earliest ends the text; of several that complete at the same character the longest, so
that nothing of any of them is left. Text is held back only while it may turn out to be the beginning of a stop
string, so never more than the longest one less a character.
"""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """What to look for; read-only, shared by the choices of a request. State 0 is "nothing matched so far"."""

    def __init__(self, strings: Sequence[str]) -> None:
        """None of them is empty."""
        self._next: list[dict[str, int]] = [{}]
        self.found: list[str | None] = [None]
        """By state: the longest string that is complete there."""
        self.held: list[int] = [0]
        """By state: characters at the end of the text that may be the beginning of a string."""
        for string in strings:
            self._add(string)
        self._fallback = [0] * len(self._next)
        self._link()

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
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
        """Each state falls back to that of its longest suffix; by breadth, as a suffix is shorter."""
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            back = self._fallback[state]
            if self.found[state] is None:
                self.found[state] = self.found[back]
            if not self._next[state]:  # a whole string that begins no other
                self.held[state] = self.held[back]
            for char, following in self._next[state].items():
                self._fallback[following] = self.step(back, char)
                states.append(following)


class StopSearch:
    """The search in the text of one request; over once `found` is set."""

    def __init__(self, strings: StopStrings, include: bool) -> None:
        """`include`: leave the stop string in the text."""
        self._strings = strings
        self._include = include
        self._state = 0
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """What can be told of the text so far; up to the stop string where `found` is set now.

        Without `may_end` (too few tokens) a string that is complete in this text does not count; one that begins in
        it and ends later does.
        """
        strings, state = self._strings, self._state
        window = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            state = strings.step(state, char)
            if may_end and (found := strings.found[state]) is not None:
                self.found, self._held = found, ""
                return window[: end if self._include else end - len(found)]
        self._state = state
        told = len(window) - strings.held[state]
        self._held = window[told:]
        return window[:told]

    def finish(self) -> str:
        """What was held back: no more text comes."""
        held, self._held = self._held, ""
        return held
