"""Parses one output: reasoning, then content with tool calls."""

from collections.abc import Callable, Sequence

from kvasir.frontend.parsers.formats.descriptions import ReasoningFormat
from kvasir.frontend.parsers.parsed import ParsedEvent
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.reader import Cut, Marks, Reader, Steps
from kvasir.frontend.parsers.streaming.reasoning_count import ReasoningCount


class StreamingParser:
    """Runs a state machine over one output. Every split into pieces gives the same joined events."""

    def __init__(
        self, machine: Callable[[Reader, Emitter, ReasoningCount], Steps[None]], count: ReasoningCount
    ) -> None:
        self.reasoning_tokens = 0  # with the marks
        self._reader = Reader()
        self._emitter = Emitter()
        self._count = count
        self._steps = machine(self._reader, self._emitter, count)
        self._run()

    def push(self, text: str, token_ids: Sequence[int]) -> list[ParsedEvent]:
        """Return the events that the next text, with special tokens, completes. `token_ids`: its tokens."""
        before = self._count.is_reasoning
        self._reader.feed(text)
        self._run()
        self._count.add(token_ids, before)
        self.reasoning_tokens = self._count.tokens
        return self._emitter.taken()

    @property
    def is_torn(self) -> bool:
        """Return whether the last call broke after its beginning in the events."""
        return self._emitter.is_torn

    def finish(self, *, is_cut: bool = False) -> list[ParsedEvent]:
        """Return the remaining events. `is_cut`: by the length limit, where a call may stay incomplete."""
        self._reader.ended = True
        self._reader.is_cut = is_cut
        self._run()
        self._emitter.end()
        self.reasoning_tokens = self._count.tokens
        return self._emitter.taken()

    def _run(self) -> None:
        next(self._steps, None)


def read_reasoning(
    reader: Reader, emitter: Emitter, count: ReasoningCount, described: ReasoningFormat, is_open: bool
) -> Steps[None]:
    """Read the reasoning at the beginning of an output.

    `is_open`: the output begins inside the reasoning, possibly with a start mark.
    """
    count.begin()
    reader.record()
    yield from reader.skip_space()
    try:
        start = yield from reader.accept(*described.starts)
    except Cut:
        start = None
    skipped = reader.recorded()
    if start is None and not is_open:
        emitter.content(skipped)
        count.undo()
        return
    if start is None:
        emitter.reasoning(skipped)
    ends = Marks(described.ends)
    while True:
        mark = ends.search(reader)
        if mark:
            emitter.reasoning(reader.take_to(mark.start()))
            reader.take_to(mark.end())
            count.end()
            return
        emitter.reasoning(reader.take_to(ends.safe_end(reader)))
        if reader.ended:
            return
        yield


def read_content(reader: Reader, emitter: Emitter) -> Steps[None]:
    while True:
        emitter.content(reader.take_to(len(reader.buffer)))
        if reader.ended:
            return
        yield
