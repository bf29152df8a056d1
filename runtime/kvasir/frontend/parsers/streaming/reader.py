"""The text of an output while it arrives. Its methods are generators that yield when they need more text.

Every character is consumed once, in order, and a decision never depends on where a piece ends. So the events of an
output do not depend on how it was split, and the time is linear in its length.
"""

import re
from collections.abc import Generator, Sequence
from typing import Final, TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]
"""A part of the state machine. It yields when it has read all the text that there is."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")


class Malformed(Exception):
    """The next text does not fit the format."""


class Cut(Exception):
    """The output has ended in the middle of something."""


class Reader:
    """Text that has arrived and is not consumed, and a record of consumed text."""

    def __init__(self) -> None:
        self.buffer = ""
        self.position = 0
        """The first character of the buffer that is not consumed."""
        self.ended = False
        self.is_cut = False
        """The output has ended at the limit of its length."""
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        self.buffer = self.buffer[self.position :] + text
        self.position = 0

    @property
    def is_empty(self) -> bool:
        return self.position == len(self.buffer)

    def take_to(self, end: int) -> str:
        """Consume and return the text up to this index of the buffer."""
        text = self.buffer[self.position : end]
        self.position = end
        if self._record is not None:
            self._record.append(text)
        return text

    def record(self) -> None:
        """Keep the text that is consumed from now on, in case it has to be content after all."""
        self._record = []

    def recorded_so_far(self) -> str:
        """Return the text consumed since `record`, and go on recording."""
        return "".join(self._record or ())

    def recorded(self) -> str:
        """Return the text consumed since `record`, and stop."""
        text = "".join(self._record or ())
        self._record = None
        return text

    def more(self) -> Steps[None]:
        """Wait for more text. Raises Cut at the end of the output."""
        if self.ended:
            raise Cut
        yield

    def peek(self) -> Steps[str]:
        """Return the next character without consuming it. Raises Cut."""
        while self.is_empty:
            yield from self.more()
        return self.buffer[self.position]

    def skip_space(self) -> Steps[None]:
        """Consume whitespace, also at the end of the output."""
        while True:
            match = _SPACE.match(self.buffer, self.position)
            assert match is not None  # matches any text
            self.take_to(match.end())
            if not self.is_empty or self.ended:
                return
            yield

    def skip_through(self, literal: str) -> Steps[None]:
        """Consume the text up to the end of a literal. Raises Cut."""
        while (start := self.buffer.find(literal, self.position)) < 0:
            self.take_to(max(self.position, len(self.buffer) - len(literal) + 1))
            yield from self.more()
        self.take_to(start + len(literal))

    def follows(self, *literals: str) -> Steps[str | None]:
        """Return the longest of some texts that comes next, or None. Raises Cut if the output ends within one."""
        if not any(literals):
            return None
        while True:
            found = [each for each in literals if each and self.buffer.startswith(each, self.position)]
            rest = len(self.buffer) - self.position
            undecided = rest < max(map(len, literals)) and any(
                len(each) > rest and self.buffer.endswith(each[:rest]) for each in literals
            )
            if undecided and not self.ended:
                yield
            elif found:
                return max(found, key=len)
            elif undecided:
                raise Cut
            else:
                return None

    def accept(self, *literals: str) -> Steps[str | None]:
        """Consume one of some texts if it comes next, the longest that does. Return it, or None.

        At the end of the output a beginning of one is consumed, and Cut is raised.
        """
        try:
            found = yield from self.follows(*literals)
        except Cut:
            self.take_to(len(self.buffer))
            raise
        if found is not None:
            self.take_to(self.position + len(found))
        return found

    def expect(self, *literals: str) -> Steps[str]:
        """Consume and return one of some texts. Raises Malformed if another text comes."""
        found = yield from self.accept(*literals)
        if found is None:
            raise Malformed
        return found

    def match(self, pattern: re.Pattern[str], longest: int) -> Steps[str]:
        """Consume and return a text of this pattern, of at least 1 and at most `longest` characters.

        The pattern matches single characters repeatedly. Raises Malformed and Cut.
        """
        while True:
            match = pattern.match(self.buffer, self.position)
            end = match.end() if match else self.position
            if end - self.position > longest:
                raise Malformed
            if end < len(self.buffer):
                if end == self.position:
                    raise Malformed
                return self.take_to(end)
            yield from self.more()


class Marks:
    """Finds the first of some marks in a text, and the beginning of one at its end."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._whole = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
        self._beginning = re.compile(f"(?:{'|'.join(map(_beginnings, marks))})\\Z")
        self._longest = max(map(len, marks))

    def search(self, reader: Reader) -> re.Match[str] | None:
        """Return the first mark of the unread text."""
        return self._whole.search(reader.buffer, reader.position)

    def safe_end(self, reader: Reader) -> int:
        """Return the index of the buffer up to which no mark begins. Call it when `search` finds none."""
        if reader.ended:
            return len(reader.buffer)
        start = max(reader.position, len(reader.buffer) - self._longest + 1)
        match = self._beginning.search(reader.buffer, start)
        return match.start() if match else len(reader.buffer)


def _beginnings(mark: str) -> str:
    """Return a regular expression for all proper beginnings of a mark."""
    pattern = ""
    for character in reversed(mark[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern or "(?!)"
