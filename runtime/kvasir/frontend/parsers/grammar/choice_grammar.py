"""The grammar of an output after its reasoning: tool calls, and the answer's own grammar."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvasir.client.input.lark_literals import regex
from kvasir.frontend.parsers.formats.descriptions import HarmonyFormat, ToolFormat
from kvasir.frontend.parsers.grammar.harmony_rules import harmony_answer, harmony_call, harmony_text
from kvasir.frontend.parsers.grammar.lark_text import LarkText, either
from kvasir.frontend.parsers.grammar.section_rules import SectionRules
from kvasir.frontend.parsers.parsed import Tool, ToolChoice, UnsupportedChoice
from kvasir.grammar_bounds.json_options import whitespace_options
from kvasir.request.constraint import Grammar, GrammarKind

MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class WantedOutput:
    tools: Sequence[Tool]
    choice: ToolChoice
    parallel: bool
    answer: Grammar | None  # of content that is not a call

    @property
    def has_calls(self) -> bool:
        return bool(self.tools) and self.choice is not ToolChoice.NONE

    @property
    def needs_rules(self) -> bool:
        if not self.has_calls:
            return False
        guarded = self.answer is not None or any(tool.strict for tool in self.tools)
        return self.choice is ToolChoice.REQUIRED or guarded

    @property
    def is_text_with_calls(self) -> bool:
        """Return whether only the calls in the output follow rules."""
        return self.needs_rules and self.choice is ToolChoice.AUTO and self.answer is None


def content_rules(
    lark: LarkText,
    described: ToolFormat | HarmonyFormat,
    choice: WantedOutput,
    thought: tuple[str, str] | None = None,
) -> str:
    """Return an expression for the output. Raises UnsupportedChoice.

    `thought`: marks of initial reasoning; only for `is_text_with_calls`.
    """
    _check(choice.tools)
    only_strict = choice.choice is ToolChoice.AUTO
    if isinstance(described, HarmonyFormat):
        call = harmony_call(lark, choice.tools, only_strict=only_strict)
        if choice.choice is ToolChoice.REQUIRED:
            return call
        other = harmony_text(lark) if choice.answer is None else harmony_answer(lark, _answer(lark, choice.answer))
        return either([lark.rule("calls", call), lark.rule("message", other)])
    sections = SectionRules(
        lark, described, choice.tools, parallel=choice.parallel, only_strict=only_strict, thought=thought
    )
    if choice.choice is ToolChoice.REQUIRED:
        return sections.calls_only()
    if choice.answer is None:
        return sections.text_and_calls()
    answer = choice.answer
    if described.bare and answer.kind is GrammarKind.JSON_SCHEMA:
        # without optional whitespace, JSON shares the lexer's tokens with a call
        answer = Grammar(answer.kind, answer.text, any_whitespace=False)
    return either([lark.rule("answer", _answer(lark, answer)), sections.calls_only()])


def answer_rules(lark: LarkText, answer: Grammar) -> str:
    """Return an expression for an answer as a harmony message. Raises UnsupportedChoice."""
    return harmony_answer(lark, _answer(lark, answer))


def embedded_answer(lark: LarkText, answer: Grammar) -> str | None:
    """Return a grammar as an expression, or None if Lark cannot contain it."""
    match answer.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = json.loads(answer.text)
            return lark.json(schema if isinstance(schema, dict) else {}, whitespace_options(answer))
        case GrammarKind.REGEX:
            return lark.rule("REGEX", regex(answer.text))
        case GrammarKind.LARK:
            return f"%lark {{\n{answer.text}\n}}"
    return None


def _answer(lark: LarkText, answer: Grammar) -> str:
    expression = embedded_answer(lark, answer)
    if expression is None:
        raise UnsupportedChoice(
            f"a grammar in {answer.kind.value} cannot be combined with this choice of tools or with reasoning: use "
            "a JSON Schema, a regular expression or a grammar in Lark, or leave out the tools"
        )
    return expression


def _check(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:
        raise UnsupportedChoice(f"{len(tools)} tools are too many: at most {MAX_TOOLS} can be enforced")
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            raise UnsupportedChoice(
                f"the function name {tool.name[:70]!r} cannot be enforced: use 1 to 64 of a-z, A-Z, 0-9, _, . and -"
            )
