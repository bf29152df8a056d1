"""The text of an output while it arrives. Generators yield when they need more text.

Each character is consumed once, and no decision depends on the end of a piece: every split of an output gives the
same events, in linear time.
"""

import re
from collections.abc import Generator, Sequence
from typing import Final, TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]

_SPACE: Final = re.compile(r"[ \t\r\n]*")


class Malformed(Exception):
    """The next text does not fit the format."""


class Cut(Exception):
    """The output ended in the middle of something."""


class Reader:
    """The unread text, and a record of consumed text."""

    def __init__(self) -> None:
        self.buffer = ""
        self.position = 0  # first unread character
        self.ended = False
        self.is_cut = False  # ended by the length limit
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        self.buffer = self.buffer[self.position :] + text
        self.position = 0

    @property
    def is_empty(self) -> bool:
        return self.position == len(self.buffer)

    def take_to(self, end: int) -> str:
        text = self.buffer[self.position : end]
        self.position = end
        if self._record is not None:
            self._record.append(text)
        return text

    def record(self) -> None:
        """Keep the text consumed from now on: it may become content."""
        self._record = []

    def recorded_so_far(self) -> str:
        return "".join(self._record or ())

    def recorded(self) -> str:
        text = "".join(self._record or ())
        self._record = None
        return text

    def more(self) -> Steps[None]:
        """Wait for more text. Raises Cut at the end."""
        if self.ended:
            raise Cut
        yield

    def peek(self) -> Steps[str]:
        """Return the next character. Raises Cut."""
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

    def skip_through(self, literal: str, stops: Sequence[str] = ()) -> Steps[None]:
        """Consume the text up to the end of a literal. Raises Malformed if a stop comes before it, and Cut."""
        marks = Marks([literal, *filter(None, stops)])
        while (found := marks.search(self)) is None:
            self.take_to(marks.safe_end(self))
            yield from self.more()
        if found[0] != literal:
            raise Malformed
        self.take_to(found.end())

    def follows(self, *literals: str) -> Steps[str | None]:
        """Return the longest literal that comes next, or None. Raises Cut within one."""
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
        """Consume and return the result of `follows`, or the beginning at Cut."""
        try:
            found = yield from self.follows(*literals)
        except Cut:
            self.take_to(len(self.buffer))
            raise
        if found is not None:
            self.take_to(self.position + len(found))
        return found

    def expect(self, *literals: str) -> Steps[str]:
        """Raises Malformed without a literal, and Cut."""
        found = yield from self.accept(*literals)
        if found is None:
            raise Malformed
        return found

    def match(self, pattern: re.Pattern[str], longest: int) -> Steps[str]:
        """Consume 1 to `longest` characters that match a repeated class. Raises Malformed and Cut."""
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
    """Finds marks in the unread text, and beginnings of marks at its end."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._whole = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
        self._beginning = re.compile(f"(?:{'|'.join(map(_beginnings, marks))})\\Z")
        self._longest = max(map(len, marks))

    def search(self, reader: Reader) -> re.Match[str] | None:
        return self._whole.search(reader.buffer, reader.position)

    def safe_end(self, reader: Reader) -> int:
        """Return the index before which no mark begins, if `search` finds none."""
        if reader.ended:
            return len(reader.buffer)
        start = max(reader.position, len(reader.buffer) - self._longest + 1)
        match = self._beginning.search(reader.buffer, start)
        return match.start() if match else len(reader.buffer)


def _beginnings(mark: str) -> str:
    """Return a pattern for proper beginnings: "abc" gives "a(?:b)?"."""
    pattern = ""
    for character in reversed(mark[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern or "(?!)"
