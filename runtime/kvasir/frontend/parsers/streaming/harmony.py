"""Reads gpt-oss's messages: <|channel|>NAME[ to=RECIPIENT] ...<|message|>TEXT<|end|>, one after another.

The channel analysis is reasoning, commentary and final are content. A message to functions.NAME, or to an offered
NAME, is a call.
"""

import re
from collections.abc import Callable, Collection
from typing import Final

from kvasir.frontend.parsers.streaming.call_bodies import CallOutput, is_name
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
_RECIPIENT: Final = re.compile(r"\bto=(functions\.)?([^\s<]+)")


class HarmonyMessages:
    """Reads the messages of one output. Text outside of messages is content."""

    def __init__(
        self,
        reader: Reader,
        emitter: Emitter,
        count: ReasoningCount,
        prompt_tail: str,
        names: Collection[str],
    ) -> None:
        """`prompt_tail`: may begin the first message's header. `names`: the offered functions."""
        self._reader = reader
        self._emitter = emitter
        self._out = CallOutput(reader, emitter, names)
        self._names = names
        self._count = count
        self._header = prompt_tail[prompt_tail.rfind(START) :] if START in prompt_tail else ""

    def read(self) -> Steps[None]:
        reader, emitter = self._reader, self._emitter
        emitter.hold_space()
        try:
            if self._header.endswith(MESSAGE):
                self._count.begin()
                yield from self._body(self._header)
            elif CHANNEL in self._header or (self._header and (yield from self._is_recipient())):
                yield from self._message(self._header, is_prompt=True)
            while True:
                mark = yield from reader.accept(*_HEADER_BEGINNINGS)
                if mark is not None:
                    yield from self._message(mark)
                elif (yield from reader.accept(END, CALL, RETURN)) is None:
                    yield from self._content()
        except Cut:
            pass

    def _is_recipient(self) -> Steps[bool]:
        """Return whether the output begins with a recipient, after the prompt's role."""
        try:
            return (yield from self._reader.follows(" to=")) is not None
        except Cut:
            return False

    def _message(self, beginning: str, *, is_prompt: bool = False) -> Steps[None]:
        """Read a header and its message. `beginning`: the header's consumed part."""
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
                self._emitter.content("".join(header[1:] if is_prompt else header))
                return
            if mark:
                reader.take_to(mark.end())
                break
            yield
        yield from self._body("".join(header))

    def _body(self, header: str) -> Steps[None]:
        recipient = _RECIPIENT.search(header)
        if recipient and is_name(recipient[2]) and (recipient[1] or recipient[2] in self._names):
            self._count.undo()
            yield from self._call(recipient[2], header)
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
        is_in_events = False
        try:
            yield from reader.skip_space()
            if (yield from self._is_at_end()):
                self._out.whole_call(name, "{}")
            else:
                yield from self._out.read_arguments(name, _BODY_ENDS)
            is_in_events = emitter.end_call()
            if is_in_events:
                reader.record()
            yield from self._surplus(keeps_record=not is_in_events)
        except Malformed:
            is_in_events = emitter.drop_call()
        except Cut:
            if emitter.is_call_open:
                is_in_events = emitter.cut_call(reader.is_cut)
            if is_in_events:
                reader.record()
        text = reader.recorded()
        if text.strip():
            emitter.content(text if is_in_events else f"{header}{MESSAGE}{text}")

    def _surplus(self, *, keeps_record: bool) -> Steps[None]:
        yield from self._reader.skip_space()
        while (yield from self._reader.accept("}")):
            if not keeps_record:
                self._reader.record()
            yield from self._reader.skip_space()

    def _is_at_end(self) -> Steps[bool]:
        """Return whether the message ends here, and consume its end mark."""
        # the mark is missing if it is a stop token
        if self._reader.is_empty and self._reader.ended:
            return True
        return (yield from self._reader.accept(END, CALL, RETURN)) is not None
