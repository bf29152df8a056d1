"""Reads gpt-oss's messages: <|channel|>NAME[ to=RECIPIENT] ...<|message|>TEXT<|end|>, one after another.

analysis is reasoning; commentary and final are content; a message to functions.NAME is a call of that function.
"""

import re
from collections.abc import Callable
from typing import Final

from kvasir.frontend.parsers.streaming.call_bodies import is_name, send_arguments, send_call
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.reader import Cut, Malformed, Marks, Reader, Steps
from kvasir.frontend.parsers.streaming.reasoning_count import ReasoningCount

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
END: Final = "<|end|>"
CALL: Final = "<|call|>"
RETURN: Final = "<|return|>"
MAX_HEADER_CHARACTERS: Final = 1024

_HEADER_BEGINNINGS: Final = (START, CHANNEL)
_BODY_ENDS: Final = (END, CALL, RETURN, START, CHANNEL)
_MESSAGE_MARKS: Final = Marks([MESSAGE])
_END_MARKS: Final = Marks(_BODY_ENDS)
_CHANNEL_NAME: Final = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_FUNCTION: Final = re.compile(r"\bto=functions\.([^\s<]+)")


class HarmonyMessages:
    """The messages of one output. Text that is not part of a message is content."""

    def __init__(self, reader: Reader, emitter: Emitter, count: ReasoningCount, prompt_tail: str) -> None:
        """`prompt_tail`: the prompt may have begun the header of the first message."""
        self._reader = reader
        self._emitter = emitter
        self._count = count
        self._header = prompt_tail[prompt_tail.rfind(START) :] if START in prompt_tail else ""

    def read(self) -> Steps[None]:
        """Read to the end of the output."""
        reader, emitter = self._reader, self._emitter
        emitter.hold_space()
        try:
            if self._header.endswith(MESSAGE):
                self._count.begin()
                yield from self._body(self._header)
            elif CHANNEL in self._header:
                yield from self._message(self._header)
            while True:
                mark = yield from reader.accept(*_HEADER_BEGINNINGS)
                if mark is not None:
                    yield from self._message(mark)
                elif (yield from reader.accept(END, CALL, RETURN)) is None:
                    yield from self._content()
        except Cut:
            pass

    def _message(self, beginning: str) -> Steps[None]:
        """Read a header and its message. `beginning`: of the header, consumed already."""
        reader = self._reader
        self._count.begin()
        header = [beginning]
        left = MAX_HEADER_CHARACTERS - len(beginning)
        while True:
            mark = _MESSAGE_MARKS.search(reader)
            end, limit = mark.start() if mark else _MESSAGE_MARKS.safe_end(reader), reader.position + left
            header.append(reader.take_to(min(end, limit)))
            left -= len(header[-1])
            if end > limit or (reader.ended and not mark):
                self._count.undo()
                self._emitter.content("".join(header))
                return
            if mark:
                reader.take_to(mark.end())
                break
            yield
        yield from self._body("".join(header))

    def _body(self, header: str) -> Steps[None]:
        function = _FUNCTION.search(header)
        if function and is_name(function[1]):
            self._count.undo()
            yield from self._call(function[1], header)
            return
        channel = _CHANNEL_NAME.search(header)
        if channel and channel[1] == "analysis":
            yield from self._text(self._emitter.reasoning)
            self._count.end()
        else:
            self._count.undo()
            yield from self._content()

    def _content(self) -> Steps[None]:
        yield from self._text(self._emitter.content)

    def _text(self, sink: Callable[[str], None]) -> Steps[None]:
        """Read text up to a mark, which is not consumed, or to the end of the output."""
        reader = self._reader
        while True:
            mark = _END_MARKS.search(reader)
            sink(reader.take_to(mark.start() if mark else _END_MARKS.safe_end(reader)))
            if mark:
                return
            yield from reader.more()

    def _call(self, name: str, header: str) -> Steps[None]:
        reader, emitter = self._reader, self._emitter
        reader.record()
        begun = False
        try:
            yield from reader.skip_space()
            if (yield from self._is_at_end()):
                send_call(reader, emitter, name, "{}")
            else:
                yield from send_arguments(reader, emitter, name)
            emitter.end_call()
            begun = True
            reader.record()
            yield from reader.skip_space()
        except Malformed:
            pass
        except Cut:
            if emitter.is_call_sent:
                reader.record()
        text = reader.recorded()
        if text.strip():
            emitter.content(text if begun or emitter.is_call_sent else f"{header}{MESSAGE}{text}")
        emitter.end_call()

    def _is_at_end(self) -> Steps[bool]:
        """Return whether the message ends here. Its end mark is consumed, or missing: engines stop at it."""
        if self._reader.is_empty and self._reader.ended:
            return True
        return (yield from self._reader.accept(END, CALL, RETURN)) is not None
