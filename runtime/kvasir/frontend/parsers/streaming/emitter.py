"""Collects the events of an output."""

from dataclasses import dataclass, field
from typing import Final

from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, ParsedEvent, ReasoningText
from kvasir.frontend.parsers.streaming.json_mender import JsonMender

# a call with fewer characters of arguments is held back, as it may become content
MAX_HELD_CHARACTERS: Final = 512


@dataclass
class _Call:
    name: str
    is_offered: bool
    parts: list[str] = field(default_factory=list)
    length: int = 0
    is_whole: bool = False
    is_sent: bool = False


class Emitter:
    """Numbers calls, holds back a call that may still break, and drops whitespace next to calls."""

    def __init__(self) -> None:
        self._events: list[ParsedEvent] = []
        self._space: list[str] = []
        self._holds_space = False
        self._calls = 0
        self._is_behind_call = False
        self._call: _Call | None = None
        self._strays: list[str] = []
        self.is_torn = False  # the last call broke after it was sent

    @property
    def is_call_open(self) -> bool:
        return self._call is not None

    @property
    def is_call_sent(self) -> bool:
        """Return whether the open call is in the events, so that it cannot become content."""
        return self._call is not None and self._call.is_sent

    def hold_space(self) -> None:
        """Hold back whitespace after content, as a call may follow."""
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

    def stray(self, text: str) -> None:
        """Keep content for the events before this section's next call."""
        self._strays.append(text)

    def begin_section(self) -> None:
        self._strays.clear()

    def begin_call(self, name: str, *, is_offered: bool) -> None:
        self._call = _Call(name, is_offered)

    def arguments(self, text: str) -> None:
        call = self._call
        assert call is not None
        if not text:
            return
        call.parts.append(text)
        call.length += len(text)
        if call.is_sent:
            self._events.append(CallArguments(self._calls - 1, text))
        elif call.is_offered and call.length > MAX_HELD_CHARACTERS:
            self._send(call)

    def arguments_are_whole(self) -> None:
        assert self._call is not None
        self._call.is_whole = True

    def end_call(self) -> bool:
        """Complete the open call. Return whether it is in the events."""
        call, self._call = self._call, None
        assert call is not None
        if call.is_offered and not call.is_sent:
            self._send(call)
        return call.is_offered

    def drop_call(self) -> bool:
        """Drop a malformed call. If it is in the events, complete its arguments and return True."""
        call, self._call = self._call, None
        if call is None or not call.is_sent:
            return False
        self.is_torn = True
        mender = JsonMender()
        mender.scan("".join(call.parts), 0, is_end=True)
        if missing := mender.completion():
            self._events.append(CallArguments(self._calls - 1, missing))
        return True

    def cut_call(self, is_cut: bool) -> bool:
        """End the output within the open call. Return whether the call is in the events.

        `is_cut`: by the length limit, which leaves the arguments incomplete.
        """
        call = self._call
        assert call is not None
        if call.is_whole or (is_cut and call.is_offered):
            return self.end_call()
        return self.drop_call()

    def end(self) -> None:
        if self._space and not self._is_behind_call:
            self._events.append(ContentText("".join(self._space)))
        self._space.clear()

    def taken(self) -> list[ParsedEvent]:
        events, self._events = merged(self._events), []
        return events

    def _send(self, call: _Call) -> None:
        for stray in self._strays:
            self.content(stray)
        self._strays.clear()
        self._space.clear()
        self._events.append(CallBegun(self._calls, call.name))
        if call.parts:
            self._events.append(CallArguments(self._calls, "".join(call.parts)))
        self._calls += 1
        self._is_behind_call = call.is_sent = True
        self.is_torn = False


def merged(events: list[ParsedEvent]) -> list[ParsedEvent]:
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
