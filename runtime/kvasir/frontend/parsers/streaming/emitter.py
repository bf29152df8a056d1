"""Collects the events of an output, neighbouring texts of a kind as one."""

from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, ParsedEvent, ReasoningText


class Emitter:
    """Numbers the calls, and drops whitespace that stands next to a call only.

    Whitespace at the end of the content is held back: it is dropped if a call follows, or at the end of the output
    if it stands behind a call.
    """

    def __init__(self) -> None:
        self._events: list[ParsedEvent] = []
        self._space: list[str] = []
        self._holds_space = False
        self._calls = 0
        self._is_behind_call = False
        self.is_call_sent = False
        """The current call has begun in the events: its text cannot become content any more."""

    def hold_space(self) -> None:
        """From now on a call may follow the content."""
        self._holds_space = True

    def reasoning(self, text: str) -> None:
        if text:
            self._events.append(ReasoningText(text))

    def content(self, text: str) -> None:
        if not text:
            return
        if not self._holds_space:
            self._events.append(ContentText(text))
            return
        stripped = text.rstrip(" \t\r\n")
        if stripped:
            self._events.append(ContentText("".join([*self._space, stripped])))
            self._space.clear()
            self._is_behind_call = False
        if len(stripped) < len(text):
            self._space.append(text[len(stripped) :])

    def begin_call(self, name: str) -> None:
        self._space.clear()
        self._events.append(CallBegun(self._calls, name))
        self._calls += 1
        self._is_behind_call = self.is_call_sent = True

    def arguments(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self._calls - 1, text))

    def end_call(self) -> None:
        self.is_call_sent = False

    def end(self) -> None:
        """The output has ended."""
        if self._space and not self._is_behind_call:
            self._events.append(ContentText("".join(self._space)))
        self._space.clear()

    def taken(self) -> list[ParsedEvent]:
        """Return the events since the last call, and forget them."""
        events, self._events = merged(self._events), []
        return events


def merged(events: list[ParsedEvent]) -> list[ParsedEvent]:
    """Return the events with each run of one kind as a single one."""
    result: list[ParsedEvent] = []
    run: list[str] = []
    for event in events:
        if not result or not _continues(result[-1], event):
            _close(result, run)
            result.append(event)
        if not isinstance(event, CallBegun):
            run.append(event.text)
    _close(result, run)
    return result


def _continues(before: ParsedEvent, event: ParsedEvent) -> bool:
    if isinstance(before, CallArguments) and isinstance(event, CallArguments):
        return before.index == event.index
    return type(before) is type(event) and not isinstance(event, CallBegun)


def _close(result: list[ParsedEvent], run: list[str]) -> None:
    if len(run) > 1:
        text, last = "".join(run), result[-1]
        if isinstance(last, CallArguments):
            result[-1] = CallArguments(last.index, text)
        elif isinstance(last, ContentText):
            result[-1] = ContentText(text)
        elif isinstance(last, ReasoningText):
            result[-1] = ReasoningText(text)
    run.clear()
