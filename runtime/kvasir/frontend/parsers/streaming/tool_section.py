"""Reads content: text, and sections of calls as a format describes them."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from kvasir.frontend.parsers.formats.descriptions import Body, Layout, ToolFormat
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.streaming.call_bodies import CallOutput, NamedCall, ObjectCall
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.python_call import PythonCall
from kvasir.frontend.parsers.streaming.reader import Cut, Malformed, Marks, Reader, Steps
from kvasir.frontend.parsers.streaming.xml_call import FUNCTION_OPENING, XmlCall


class ToolSections:
    """Malformed calls, and calls of functions not offered, are content."""

    def __init__(
        self, reader: Reader, emitter: Emitter, described: ToolFormat, tools: Mapping[str, Tool] | None
    ) -> None:
        """`tools`: by name; None: any function may be called."""
        self._reader = reader
        self._emitter = emitter
        self._format = described
        self._tools = tools or {}
        self._out = CallOutput(reader, emitter, None if tools is None else tools.keys())
        openings = list(described.openings)
        if any(layout.body is Body.XML for layout in described.layouts):
            openings.append(FUNCTION_OPENING)  # models forget the mark before it
        self._marks = Marks(openings) if openings else None
        self._ends = [mark for mark in (described.closing, *described.other_closings) if mark]
        self._closings = [*self._ends, *filter(None, _call_closings(described))]
        self._all_marks = Marks([*openings, *self._closings]) if openings else None
        self._is_unclosed = False  # the last call's closing mark may follow
        self._is_behind_call = False
        self._is_closed = False
        self._is_line_blank = True

    def read(self) -> Steps[None]:
        reader = self._reader
        self._emitter.hold_space()
        if self._format.bare:
            yield from self._bare_section()
        while True:
            marks = self._all_marks if self._is_unclosed else self._marks
            mark = marks.search(reader) if marks else None
            if mark:
                self._content(reader.take_to(mark.start()))
                if mark[0] in self._closings:
                    reader.take_to(mark.end())
                    self._is_unclosed = mark[0] not in self._ends
                elif mark[0] == FUNCTION_OPENING and not self._is_line_blank:
                    self._content(reader.take_to(mark.end()))
                else:
                    yield from self._attempt(mark[0])
                continue
            end = marks.safe_end(reader) if marks else len(reader.buffer)
            self._content(reader.take_to(end))
            if reader.ended:
                return
            yield

    def _content(self, text: str) -> None:
        self._emitter.content(text)
        _, line_break, line = text.rpartition("\n")
        self._is_line_blank = not line.strip() and (bool(line_break) or self._is_line_blank)

    def _bare_section(self) -> Steps[None]:
        reader = self._reader
        reader.record()
        yield from reader.skip_space()
        self._emitter.content(reader.recorded())
        firsts = tuple(first for layout in self._format.layouts for first in _firsts(layout))
        if reader.is_empty or not reader.buffer.startswith(firsts, reader.position):
            return
        yield from self._attempt("")

    def _attempt(self, opening: str) -> Steps[None]:
        """Read a section. Text outside of calls becomes content."""
        reader, emitter = self._reader, self._emitter
        self._is_behind_call = self._is_closed = self._is_unclosed = False
        self._is_line_blank = True
        reader.record()
        emitter.begin_section()
        is_torn = False
        try:
            yield from self._section(opening)
        except Malformed:
            is_torn = emitter.drop_call()
        except Cut:
            if emitter.is_call_open:
                is_in_events = emitter.cut_call(reader.is_cut)
            else:
                is_in_events = self._is_behind_call and self._begins_mark(reader.recorded_so_far().strip())
            if is_in_events:
                reader.record()
        self._content(reader.recorded())
        if is_torn:
            yield from self._rest_of_torn_call()
        else:
            self._is_unclosed = self._is_behind_call and not self._is_closed

    def _section(self, opening: str) -> Steps[None]:
        reader = self._reader
        if opening != FUNCTION_OPENING:
            yield from reader.accept(opening)
            yield from reader.skip_space()
        self._out.is_fenced = False
        if opening:
            yield from self._out.open_fence()
        layout = yield from self._chosen_layout()
        if layout.array:
            yield from reader.expect("[")
            yield from reader.skip_space()
        if layout.call_opening:
            yield from reader.expect(layout.call_opening)
        while True:
            start = len(reader.recorded_so_far())
            yield from self._call(layout, is_bare=not opening)
            is_in_events = self._emitter.end_call()
            if is_in_events:
                self._is_behind_call = True
                reader.record()
            surplus = () if layout.body is Body.XML else ("}", *_parts(layout.call_closing))
            yield from self._end(*surplus, layout.call_closing, keeps_record=not is_in_events)
            if not is_in_events:
                self._not_offered(layout.call_opening + reader.recorded_so_far()[start:])
            if not (yield from self._another(layout)):
                break
        surplus = ("}", "]") if layout.array else ()
        yield from self._end(*surplus, *self._ends, keeps_record=not self._is_behind_call)

    def _not_offered(self, text: str) -> None:
        if self._is_behind_call:
            self._content(text)
            self._reader.record()
        else:  # the whole section is content if no other call follows
            self._emitter.stray(text)

    def _end(self, *marks: str, keeps_record: bool) -> Steps[None]:
        """Read marks and surplus brackets. They are content only if the call is."""
        reader = self._reader
        marks = (*(mark.lstrip() for mark in marks), "```" if self._out.is_fenced else "")
        yield from reader.skip_space()
        while found := (yield from reader.accept(*marks)):
            self._is_closed = self._is_closed or found in self._ends
            if not keeps_record:
                reader.record()
            yield from reader.skip_space()

    def _rest_of_torn_call(self) -> Steps[None]:
        """Drop the rest of a torn call up to its closing mark. Without one it is content."""
        reader = self._reader
        reader.record()
        marks = Marks([*self._closings, *self._format.openings]) if self._closings else None
        while marks and (found := marks.search(reader)) is None:
            reader.take_to(marks.safe_end(reader))
            if reader.ended:
                break
            yield
        else:
            if marks and found and found[0] in self._closings:
                reader.take_to(found.end())
                reader.record()
                with suppress(Cut):
                    yield from self._closing_marks()
        self._content(reader.recorded())

    def _closing_marks(self) -> Steps[None]:
        yield from self._reader.skip_space()
        while (yield from self._reader.accept(*(mark.lstrip() for mark in self._closings))):
            self._reader.record()
            yield from self._reader.skip_space()

    def _chosen_layout(self) -> Steps[Layout]:
        character = yield from self._reader.peek()
        layouts = self._format.layouts
        layout = next((each for each in layouts if character in each.first), layouts[0])
        return replace(layout, array=character == "[") if layout.body is Body.JSON_OBJECT else layout

    def _call(self, layout: Layout, is_bare: bool) -> Steps[None]:
        stops = [mark.lstrip() for mark in self._closings]
        if layout.body is Body.JSON_OBJECT:
            yield from ObjectCall(self._out, stops, needs_arguments=is_bare).read()
        elif layout.body is Body.NAMED_JSON:
            yield from NamedCall(self._out, layout, stops).read()
        elif layout.body is Body.XML:
            yield from XmlCall(self._out, self._tools).read()
        else:
            yield from PythonCall(self._out).read()

    def _another(self, layout: Layout) -> Steps[bool]:
        """Read up to the next call of the section. Return whether there is one."""
        reader = self._reader
        is_json = layout.body is Body.JSON_OBJECT
        if layout.array:
            return (yield from self._another_in_array(is_json=is_json))
        # only a name and JSON show a call without marks
        if not (is_json or layout.call_opening or (layout.body is Body.NAMED_JSON and not self._ends)):
            return False
        if (yield from reader.accept(layout.separator, *(() if layout.call_opening else (",",)))):
            yield from reader.skip_space()
        if layout.call_opening:
            return (yield from reader.accept(layout.call_opening)) is not None
        return not is_json or (yield from reader.peek()) == "{"

    def _another_in_array(self, *, is_json: bool) -> Steps[bool]:
        reader = self._reader
        if is_json and (yield from reader.peek()) == "{":
            return True
        if (yield from reader.expect(",", "]")) == ",":
            yield from reader.skip_space()
            if (yield from reader.accept("]")) is None:
                return True
        if self._is_behind_call:
            reader.record()
        yield from reader.skip_space()
        if not self._is_behind_call or (yield from reader.peek()) != "[":
            return False
        if (yield from reader.follows(*self._format.openings)):
            return False
        reader.take_to(reader.position + 1)  # a second array without its own mark
        yield from reader.skip_space()
        return True

    def _begins_mark(self, text: str) -> bool:
        """Return whether this text after the last call begins a mark."""
        marks = [*self._ends, ",", "]"]
        for layout in self._format.layouts:
            marks += [layout.call_opening, layout.call_closing, layout.separator]
        return any(mark.strip().startswith(text) for mark in marks if mark)


def _call_closings(described: ToolFormat) -> list[str]:
    closings = [layout.call_closing for layout in described.layouts]
    return [*closings, *(part for closing in closings for part in _parts(closing)[1:])]


def _parts(closing: str) -> tuple[str, ...]:
    """Split a closing such as "```</call>", since models write text between its marks."""
    _, block, mark = closing.partition("```")
    return (block, mark) if mark else ()


def _firsts(layout: Layout) -> str:
    """Return the first characters of calls in a section without an opening mark."""
    return "[{" if layout.body is Body.JSON_OBJECT else "[" if layout.array else "{"
