"""The constraint of an output: its grammar, the start of the grammar, and the thinking budget."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kvasir.frontend.parsers.formats.descriptions import HarmonyFormat, ReasoningFormat, ToolFormat
from kvasir.frontend.parsers.grammar.choice_grammar import (
    WantedOutput,
    answer_rules,
    content_rules,
    embedded_answer,
)
from kvasir.frontend.parsers.grammar.harmony_rules import behind_reasoning, with_reasoning
from kvasir.frontend.parsers.grammar.lark_text import LarkText, joined
from kvasir.frontend.parsers.parsed import ToolChoice, UnsupportedChoice
from kvasir.frontend.parsers.streaming.harmony import END
from kvasir.hub.tokenizer import Tokenizer
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint

_LINE_BREAKS: Final = "/\\n{0,2}/"  # models write these before a call


class OutputPhase(Enum):
    CONTENT = auto()
    REASONING = auto()  # opened by the prompt, or assumed by the format
    EITHER = auto()  # the model may open the reasoning


@dataclass(frozen=True, slots=True)
class Formats:
    tools: ToolFormat | HarmonyFormat | None
    reasoning: ReasoningFormat | HarmonyFormat | None


class ConstraintMaker:
    def __init__(self, formats: Formats, tokenizer: Tokenizer) -> None:
        self._formats = formats
        self._tokenizer = tokenizer
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special: Mapping[str, int] = {
            token.content: token_id for token_id, token in added.items() if token.special
        }
        self._text_tokens = frozenset(token.content for token in added.values() if not token.special)

    def constraint(
        self, choice: WantedOutput, phase: OutputPhase, thinking_budget: int | None
    ) -> OutputConstraint | None:
        """Return the constraint, or None. Raises UnsupportedChoice."""
        try:
            return self._constraint(choice, phase, thinking_budget)
        except RecursionError:
            raise UnsupportedChoice("the schemas are nested too deeply to be enforced: flatten them") from None

    def _constraint(
        self, choice: WantedOutput, phase: OutputPhase, thinking_budget: int | None
    ) -> OutputConstraint | None:
        if thinking_budget is not None and self._formats.reasoning is None:
            raise UnsupportedChoice(
                "a thinking budget needs a reasoning format, and none is known for this model: start the service "
                "with --reasoning-parser"
            )
        if choice.has_calls and choice.choice is ToolChoice.REQUIRED and self._formats.tools is None:
            raise UnsupportedChoice(
                "this model has no known tool format, so a tool call cannot be forced: start the service with "
                "--tool-call-parser"
            )
        if phase is OutputPhase.CONTENT:
            thinking_budget = None
        grammar = self._embedded(choice, phase) if thinking_budget is None else None
        if grammar is not None:
            return OutputConstraint(grammar)
        grammar = self._behind(choice, phase)
        if phase is OutputPhase.CONTENT or (grammar is None and thinking_budget is None):
            return None if grammar is None else OutputConstraint(grammar)
        start = self._reasoning_start() if phase is OutputPhase.EITHER else None
        return OutputConstraint(grammar, self._reasoning_end(), thinking_budget, start)

    def _embedded(self, choice: WantedOutput, phase: OutputPhase) -> Grammar | None:
        """Return a grammar with the reasoning, if the model may choose; else None."""
        lark = LarkText(self._special, self._text_tokens)
        reasoning = self._formats.reasoning
        if phase is not OutputPhase.EITHER or reasoning is None:
            return None
        if isinstance(reasoning, HarmonyFormat):
            content = self._content(lark, choice)
            return None if content is None else _lark(lark, with_reasoning(lark, content))
        start, end = reasoning.starts[0], reasoning.ends[0]
        if self._formats.tools is not None and choice.is_text_with_calls and not lark.is_special(start):
            return _lark(lark, content_rules(lark, self._formats.tools, choice, (start, end)))
        content = self._content(lark, choice)
        if content is None:
            return None
        if lark.is_special(end):
            ending = joined("/(?s:.*)/", lark.literal(end))
        else:
            ending = lark.rule("reasoned", lark.rule("REASONED", f"/(?s:.*)/ {lark.literal(end)}"), "[lazy]")
        reasoned = lark.rule("reasoning", joined(lark.literal(start), ending, _LINE_BREAKS))
        return _lark(lark, f"{reasoned}? {lark.rule('content', content)}")

    def _behind(self, choice: WantedOutput, phase: OutputPhase) -> Grammar | None:
        """Return the grammar of the output after its reasoning."""
        is_harmony = isinstance(self._formats.tools, HarmonyFormat)
        if not is_harmony and not self._needs_rules(choice):
            return choice.answer
        lark = LarkText(self._special, self._text_tokens)
        content = self._content(lark, choice)
        if content is None:
            return None
        if is_harmony:
            return _lark(lark, behind_reasoning(lark, content))
        return _lark(
            lark, content if phase is OutputPhase.CONTENT else f"{_LINE_BREAKS} {lark.rule('content', content)}"
        )

    def _content(self, lark: LarkText, choice: WantedOutput) -> str | None:
        """Return an expression for the output without reasoning; None for any text."""
        if self._formats.tools is not None and choice.needs_rules:
            return content_rules(lark, self._formats.tools, choice)
        if choice.answer is None:
            return None
        if isinstance(self._formats.tools, HarmonyFormat):
            return answer_rules(lark, choice.answer)
        return embedded_answer(lark, choice.answer)

    def _needs_rules(self, choice: WantedOutput) -> bool:
        return self._formats.tools is not None and choice.needs_rules

    def _reasoning_start(self) -> int | None:
        """Return the token that begins the reasoning, or None if it begins the output."""
        # several marks, or a mark of several tokens, could be written in other ways
        reasoning = self._formats.reasoning
        if reasoning is None or isinstance(reasoning, HarmonyFormat) or len(reasoning.starts) > 1:
            return None
        return self._tokenizer.backend.token_to_id(reasoning.starts[0])

    def _reasoning_end(self) -> tuple[int, ...]:
        reasoning = self._formats.reasoning
        end = END if isinstance(reasoning, HarmonyFormat) or reasoning is None else reasoning.ends[0]
        token_id = self._tokenizer.backend.token_to_id(end)
        if token_id is not None:
            return (token_id,)
        ids = self._tokenizer.encode(end, add_special_tokens=False)
        if self._tokenizer.decode(ids, skip_special_tokens=False).strip() != end.strip():
            raise UnsupportedChoice(
                f"this model's tokenizer cannot write {end!r}, which ends its reasoning: leave out the thinking "
                "budget, and the grammar or forced call"
            )
        return tuple(ids)


def _lark(lark: LarkText, start: str) -> Grammar:
    text = lark.text(start)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnsupportedChoice(
            "a schema has half of a surrogate pair (\\ud800 to \\udfff) in a text: send complete characters"
        ) from None
    return Grammar(GrammarKind.LARK, text)
