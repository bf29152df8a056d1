"""The parsers of a service, for its tool and reasoning formats."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from kvasir.config.options import ConfigError
from kvasir.frontend.parsers.format_plugins import KnownFormats, choose_format
from kvasir.frontend.parsers.formats.descriptions import HarmonyFormat, ReasoningFormat, ToolFormat
from kvasir.frontend.parsers.formats.reasoning_formats import HARMONY_REASONING
from kvasir.frontend.parsers.formats.tool_formats import HARMONY_TOOLS
from kvasir.frontend.parsers.grammar.choice_grammar import WantedOutput
from kvasir.frontend.parsers.grammar.output_constraint import ConstraintMaker, Formats, OutputPhase
from kvasir.frontend.parsers.parsed import Tool, ToolChoice
from kvasir.frontend.parsers.streaming.emitter import Emitter
from kvasir.frontend.parsers.streaming.harmony import CALL, CHANNEL, END, MESSAGE, RETURN, START, HarmonyMessages
from kvasir.frontend.parsers.streaming.output_parser import StreamingParser, read_content, read_reasoning
from kvasir.frontend.parsers.streaming.reader import Reader, Steps
from kvasir.frontend.parsers.streaming.reasoning_count import ReasoningCount, end_of_mark
from kvasir.frontend.parsers.streaming.tool_section import ToolSections
from kvasir.hub.tokenizer import Tokenizer
from kvasir.request.constraint import Grammar, OutputConstraint


class Parsers:
    """Makes the parser and the constraint of each output. Thread-safe."""

    def __init__(
        self,
        tools: ToolFormat | HarmonyFormat | None,
        reasoning: ReasoningFormat | HarmonyFormat | None,
        tokenizer: Tokenizer,
    ) -> None:
        """Raises ConfigError if only one format is harmony."""
        if isinstance(tools, HarmonyFormat) or isinstance(reasoning, HarmonyFormat):
            other = next(
                (each for each in (tools, reasoning) if each and not isinstance(each, HarmonyFormat)), None
            )
            if other is not None:
                raise ConfigError(
                    f"--tool-call-parser {HARMONY_TOOLS.name} and --reasoning-parser {HARMONY_REASONING.name} are "
                    f"one format and go together, not with {other.name}"
                )
            tools, reasoning = HARMONY_TOOLS, HARMONY_REASONING
        self._tools = tools
        self._reasoning = reasoning
        self._tokenizer = tokenizer
        self._constraints = ConstraintMaker(Formats(tools, reasoning), tokenizer)
        self.tool_format = tools.name if tools else None
        self.reasoning_format = reasoning.name if reasoning else None
        self._tool_ids = special_ids_of(tokenizer, tools)
        self._reasoning_ids = special_ids_of(tokenizer, reasoning)

    @classmethod
    def choose(
        cls,
        template: str | None,
        tokenizer: Tokenizer,
        tool_name: str | None,
        reasoning_name: str | None,
        plugins: Sequence[Path] = (),
    ) -> "Parsers":
        """Choose formats by name, or with None or "auto" by the chat template. Raises ConfigError.

        `plugins`: files with more formats.
        """
        known = KnownFormats(plugins)
        tools = choose_format("tool", "--tool-call-parser", known.tools, tool_name, template)
        reasoning = choose_format("reasoning", "--reasoning-parser", known.reasoning, reasoning_name, template)
        return cls(tools, reasoning, tokenizer)

    def special_ids(self, *, tools: bool) -> frozenset[int]:
        """Return the special tokens that parsers need in their text. `tools`: if the request has some."""
        return self._reasoning_ids | self._tool_ids if tools else self._reasoning_ids

    def parser(self, *, tools: Sequence[Tool], prompt_tail: str, reasoning: bool = True) -> StreamingParser | None:
        """Return the parser of an output, or None if all text is content.

        `prompt_tail`: the end of the prompt, which may have begun or ended the reasoning. `reasoning`: False leaves
        it in the content, except with harmony.
        """
        by_name = {tool.name: tool for tool in tools}
        if isinstance(self._tools, HarmonyFormat):
            count = ReasoningCount(self._ids((END,)), repeats=True)
            return StreamingParser(
                lambda reader, emitter, count: HarmonyMessages(
                    reader, emitter, count, prompt_tail, by_name.keys()
                ).read(),
                count,
            )
        described = self._reasoning if reasoning and not isinstance(self._reasoning, HarmonyFormat) else None
        if described and _ended(described, prompt_tail):
            described = None
        tool_format = self._tools if tools else None
        if described is None and tool_format is None:
            return None

        def machine(reader: Reader, emitter: Emitter, count: ReasoningCount) -> Steps[None]:
            if described:
                yield from read_reasoning(reader, emitter, count, described, is_open(described, prompt_tail))
            if tool_format:
                yield from ToolSections(reader, emitter, tool_format, by_name).read()
            else:
                yield from read_content(reader, emitter)

        return StreamingParser(machine, self._count(described.ends if described else ()))

    def _count(self, ends: Sequence[str]) -> ReasoningCount:
        if len(ids := self._ids(ends)) == len(ends):
            return ReasoningCount(ids)
        decode = partial(self._tokenizer.decode, skip_special_tokens=False)
        return ReasoningCount(ids, find_end=partial(end_of_mark, decode, ends))

    def constraint(
        self,
        *,
        tools: Sequence[Tool],
        choice: ToolChoice,
        parallel: bool,
        prompt_tail: str,
        answer: Grammar | None,
        thinking_budget: int | None,
    ) -> OutputConstraint | None:
        """Return the engine's constraint. `answer`: of response_format. Raises UnsupportedChoice."""
        wanted = WantedOutput(tools, choice, parallel, answer)
        return self._constraints.constraint(wanted, self._phase(prompt_tail), thinking_budget)

    def _phase(self, prompt_tail: str) -> OutputPhase:
        if self._reasoning is None:
            return OutputPhase.CONTENT
        if isinstance(self._reasoning, HarmonyFormat):
            return OutputPhase.EITHER
        if _ended(self._reasoning, prompt_tail):
            return OutputPhase.CONTENT
        return OutputPhase.REASONING if is_open(self._reasoning, prompt_tail) else OutputPhase.EITHER

    def _ids(self, marks: Sequence[str]) -> frozenset[int]:
        ids = (self._tokenizer.backend.token_to_id(mark) for mark in marks)
        return frozenset(token_id for token_id in ids if token_id is not None)


def is_open(described: ReasoningFormat, prompt_tail: str) -> bool:
    tail = prompt_tail.rstrip()
    return described.assumed or any(tail.endswith(start.rstrip()) for start in described.starts)


def _ended(described: ReasoningFormat, prompt_tail: str) -> bool:
    tail = prompt_tail.rstrip()
    return any(tail.endswith(end.rstrip()) for end in described.ends)


_CONSTRAIN = "<|constrain|>"
_NOT_OF_THE_OUTPUT = frozenset({"name", "markers", "not_markers", "sample"})


def special_ids_of(
    tokenizer: Tokenizer, *formats: ToolFormat | ReasoningFormat | HarmonyFormat | None
) -> frozenset[int]:
    """Return the ids of the special tokens that a parser of these formats needs in its text."""
    marks = {mark for each in formats if each is not None for mark in _marks(each)}
    backend = tokenizer.backend
    texts = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
    return frozenset(
        token_id for token_id in tokenizer.special_ids if any(texts[token_id] in mark for mark in marks)
    )


def _marks(description: object) -> Iterator[str]:
    """Return the texts that a description has for outputs."""
    if isinstance(description, HarmonyFormat):
        yield from (START, CHANNEL, MESSAGE, END, CALL, RETURN, _CONSTRAIN)
    elif isinstance(description, str):
        yield description
    elif isinstance(description, tuple):
        for part in description:
            yield from _marks(part)
    elif dataclasses.is_dataclass(description):
        for field in dataclasses.fields(description):
            if field.name not in _NOT_OF_THE_OUTPUT:
                yield from _marks(getattr(description, field.name))
