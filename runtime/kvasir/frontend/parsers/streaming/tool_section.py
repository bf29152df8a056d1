"""Reads the content of an output: text, and sections of calls between marks, as the format describes."""

from kvasir.frontend.parsers.formats.descriptions import Body, Layout, ToolFormat
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.streaming.call_bodies import NamedCall, ObjectCall
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.python_call import PythonCall
from kvasir.frontend.parsers.streaming.reader import Cut, Malformed, Marks, Reader, Steps
from kvasir.frontend.parsers.streaming.xml_call import FUNCTION_OPENING, XmlCall


class ToolSections:
    """Content with tool calls. A section that is not well-formed is content, up to the first wrong character; calls
    that were complete before remain."""

    def __init__(self, reader: Reader, emitter: Emitter, described: ToolFormat, tools: dict[str, Tool]) -> None:
        self._reader = reader
        self._emitter = emitter
        self._format = described
        self._tools = tools
        openings = list(described.openings)
        if any(layout.body is Body.XML for layout in described.layouts):
            openings.append(FUNCTION_OPENING)  # models forget the mark before it
        self._marks = Marks(openings) if openings else None
        self._is_behind_call = False

    def read(self) -> Steps[None]:
        """Read to the end of the output."""
        reader, emitter = self._reader, self._emitter
        emitter.hold_space()
        if self._format.bare:
            yield from self._bare_section()
        while True:
            mark = self._marks.search(reader) if self._marks else None
            if mark:
                emitter.content(reader.take_to(mark.start()))
                yield from self._attempt(mark[0])
                continue
            end = self._marks.safe_end(reader) if self._marks else len(reader.buffer)
            emitter.content(reader.take_to(end))
            if reader.ended:
                return
            yield

    def _bare_section(self) -> Steps[None]:
        reader = self._reader
        reader.record()
        yield from reader.skip_space()
        self._emitter.content(reader.recorded())
        if reader.is_empty or not any(
            reader.buffer.startswith(_first(layout), reader.position) for layout in self._format.layouts
        ):
            return
        yield from self._attempt("")

    def _attempt(self, opening: str) -> Steps[None]:
        """Read a section. Text that is not part of a call or its marks becomes content."""
        reader, emitter = self._reader, self._emitter
        self._is_behind_call = False
        reader.record()
        try:
            yield from self._section(opening)
        except Malformed:
            pass
        except Cut:
            in_mark = self._is_behind_call and self._begins_mark(reader.recorded_so_far().strip())
            if emitter.is_call_sent or in_mark:
                reader.record()
        emitter.content(reader.recorded())
        emitter.end_call()

    def _section(self, opening: str) -> Steps[None]:
        reader = self._reader
        if opening != FUNCTION_OPENING:
            yield from reader.accept(opening)
            yield from reader.skip_space()
        layout = yield from self._chosen_layout()
        if layout.array:
            yield from reader.expect("[")
            yield from reader.skip_space()
        if layout.call_opening:
            yield from reader.expect(layout.call_opening)
        while True:
            yield from self._call(layout, is_bare=not opening)
            self._end_call()
            yield from self._closing(layout.call_closing)
            yield from reader.skip_space()
            if not (yield from self._another(layout)):
                break
        yield from self._closing(self._format.closing)

    def _closing(self, mark: str) -> Steps[None]:
        if (yield from self._reader.accept(mark)) is not None:
            self._reader.record()

    def _chosen_layout(self) -> Steps[Layout]:
        character = yield from self._reader.peek()
        layouts = self._format.layouts
        return next((each for each in layouts if each.first == character), layouts[0])

    def _call(self, layout: Layout, is_bare: bool) -> Steps[None]:
        reader, emitter = self._reader, self._emitter
        if layout.body is Body.JSON_OBJECT:
            yield from ObjectCall(reader, emitter, needs_arguments=is_bare).read()
        elif layout.body is Body.NAMED_JSON:
            yield from NamedCall(reader, emitter, layout).read()
        elif layout.body is Body.XML:
            yield from XmlCall(reader, emitter, self._tools).read()
        else:
            yield from PythonCall(reader, emitter).read()

    def _end_call(self) -> None:
        """The next text belongs to another call, or is content."""
        self._emitter.end_call()
        self._is_behind_call = True
        self._reader.record()

    def _another(self, layout: Layout) -> Steps[bool]:
        """Read what stands between two calls. Return whether another one follows."""
        reader = self._reader
        if layout.array:
            if (yield from reader.expect(",", "]")) == "]":
                self._reader.record()
                yield from reader.skip_space()
                return False
            yield from reader.skip_space()
            return True
        if not layout.several:
            return False
        if layout.separator and (yield from reader.accept(layout.separator)):
            yield from reader.skip_space()
        if layout.call_opening:
            return (yield from reader.accept(layout.call_opening)) is not None
        return (yield from reader.peek()) == "{"

    def _begins_mark(self, text: str) -> bool:
        """Return whether an output that ends in this text behind a call was cut within a mark."""
        marks = [self._format.closing, ",", "]"]
        for layout in self._format.layouts:
            marks += [layout.call_opening, layout.call_closing, layout.separator]
        return any(mark.strip().startswith(text) for mark in marks if mark)


def _first(layout: Layout) -> str:
    return "[" if layout.array else "{"
