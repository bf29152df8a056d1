"""Rules for sections of calls, alone or within text."""

from collections.abc import Sequence
from typing import Final

from kvasir.frontend.parsers.formats.descriptions import Body, Layout, ToolFormat
from kvasir.frontend.parsers.grammar.lark_text import LarkText, either, joined, pattern
from kvasir.frontend.parsers.grammar.parameter_rules import call_rule
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.streaming.xml_call import FUNCTION_OPENING

_SPACE: Final = "[ \\n\\t\\r]"


class SectionRules:
    def __init__(
        self,
        lark: LarkText,
        described: ToolFormat,
        tools: Sequence[Tool],
        *,
        parallel: bool,
        only_strict: bool,
        thought: tuple[str, str] | None = None,
    ) -> None:
        """`parallel`: more than one call. `only_strict`: tools that are not strict may have any arguments.
        `thought`: marks of initial reasoning, in which opening marks mean nothing. Raises UnsupportedChoice.
        """
        self._lark = lark
        self._format = described
        self._tools = tools
        self._parallel = parallel
        self._thought = thought
        self._layout = _written_layout(lark, described)
        calls = [call_rule(lark, self._layout, tool, enforced=tool.strict or not only_strict) for tool in tools]
        self._section = lark.rule("section", self._section_body(either(calls)))

    def calls_only(self) -> str:
        """Return an expression for one call, or with `parallel` for more."""
        lark, described = self._lark, self._format
        marks = [mark for mark in described.openings if lark.is_token(mark)] or list(described.openings[-1:])
        choices = []
        for mark in marks:
            section = self._marked(mark)
            if self._parallel and not self._layout.several:
                section = f"{section} ({joined(lark.literal(described.between), section)})*"
            choices.append(section)
        if described.bare or not marks:
            choices.append(self._section)
        return either([choice if len(choices) == 1 else lark.rule("calls", choice) for choice in choices])

    def text_and_calls(self) -> str:
        """Return an expression for text in which each opening mark begins a well-formed section."""
        lark, described = self._lark, self._format
        self._text_terminals()
        text = "TEXT" if described.closing else "TEXT_BEHIND"
        marked = [self._lazily_marked(mark, text) for mark in described.openings]
        tail = f"({either(marked)})* {text}" if self._parallel and marked else text
        choices = [f"{self._lazily_marked(mark, 'TEXT_FIRST')} {tail}" for mark in described.openings]
        choices.append("TEXT_ONLY")
        if described.bare:
            choices.append(joined(f"/{_SPACE}*/", self._section))
        return either([lark.rule("content", choice) for choice in choices])

    def _text_terminals(self) -> None:
        """Add TEXT, TEXT_BEHIND (not begun by a call), TEXT_FIRST, and TEXT_ONLY (without calls)."""
        lark = self._lark
        text = "/(?s:.*)/"
        if self._layout.body is Body.XML:
            text += f" & ~/(?s:.*){pattern(FUNCTION_OPENING)}(?s:.*)/"
        lark.terminal("TEXT", text)
        # At the beginning, or after a section without closing, the parser reads a call without its mark.
        if self._format.bare or not self._format.closing:
            lark.terminal("TEXT_BEHIND", f"TEXT & ~/[ \\n\\t\\r,;}}\\]]*{self._unmarked_call()}(?s:.*)/")
        first = "TEXT_BEHIND" if self._format.bare else "TEXT"
        if self._thought is None:
            lark.terminal("TEXT_FIRST", first)
            lark.terminal("TEXT_ONLY", first)
            return
        start, end = map(pattern, self._thought)
        lark.terminal("THOUGHT", f"/{_SPACE}*{start}(?s:.*){end}/")
        lark.terminal("TEXT_FIRST", f"THOUGHT {first} | {first} & ~/{_SPACE}*{start}(?s:.*)/")
        lark.terminal("TEXT_ONLY", f"TEXT_FIRST | /{_SPACE}*{start}(?s:.*)/")

    def _unmarked_call(self) -> str:
        """Return a regular expression for the beginning of an unmarked call."""
        if self._layout.body is Body.JSON_OBJECT:
            return f"(\\[{_SPACE}*)?\\{{"
        if self._layout.body is Body.NAMED_JSON:
            names = "|".join(pattern(tool.name) for tool in self._tools)
            return f"({names}){_SPACE}*[\\[{{]"
        return "\\["

    def _lazily_marked(self, mark: str, text: str) -> str:
        """Return a rule for text up to the first mark, and the section after it."""
        lark = self._lark
        if lark.is_special(mark):
            return lark.rule("marked", joined(text, self._marked(mark)))
        terminal = lark.rule("MARK", f"{text} {lark.literal(mark)}")
        before = lark.rule("before", terminal, "[lazy]")
        return lark.rule("marked", joined(before, self._behind_mark()))

    def _marked(self, mark: str) -> str:
        return joined(self._lark.literal(mark), self._behind_mark())

    def _behind_mark(self) -> str:
        lark, described = self._lark, self._format
        return joined(
            lark.literal(described.space), self._section, lark.literal(described.space + described.closing)
        )

    def _section_body(self, call: str) -> str:
        lark, layout = self._lark, self._layout
        if layout.array:
            more = f"({joined(lark.literal(', '), call)})*" if self._parallel else ""
            return joined(lark.literal("["), call, more, lark.literal("]"))
        if layout.several and self._parallel:
            separator = f"{layout.separator} " if layout.separator else "" if layout.call_opening else "\n"
            return joined(call, f"({joined(lark.literal(separator), call)})*")
        return call


def _written_layout(lark: LarkText, described: ToolFormat) -> Layout:
    fitting = [each for each in described.layouts if not each.token or lark.is_token(each.token)]
    return (fitting or described.layouts)[0]
