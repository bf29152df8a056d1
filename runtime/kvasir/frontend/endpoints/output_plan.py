"""The constraint and parser of an output, from the request's tools, the model's formats, and the prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import orjson

from kvasir.client.input.grammar_source import GrammarSource, is_small
from kvasir.client.input.prompted import Prompted
from kvasir.frontend.endpoints.tool_use import ToolUse
from kvasir.frontend.errors import ApiError, bad_field
from kvasir.frontend.generation.parsed_text import ParsedText
from kvasir.frontend.parsers import Parsers, UnsupportedChoice
from kvasir.frontend.parsers.streaming.output_parser import StreamingParser
from kvasir.frontend.service import Service
from kvasir.grammar_bounds import BadGrammar, check_grammar
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint

# As in grammar_source.py. Most schemas of tools are descriptions, which cost less than patterns.
INLINE_COST: Final = 8 * 1024


@dataclass(frozen=True)
class OutputPlan:
    use: ToolUse
    constraint: OutputConstraint | None
    new_parser: Callable[[], StreamingParser | None] | None = None
    """None: the output is the content."""
    shown_special_ids: frozenset[int] = frozenset()
    constraint_field: str | None = None

    def apply(self, prompted: Prompted) -> Prompted:
        if self.constraint is None and not self.shown_special_ids:
            return prompted
        return replace(
            prompted.with_core(constraint=self.constraint),
            constraint_field=None if self.constraint is None else self.constraint_field,
            shown_special_ids=self.shown_special_ids,
        )

    def parsed_text(self) -> ParsedText:
        most_calls = 0 if not self.use.callable else None if self.use.parallel else 1
        return ParsedText(None if self.new_parser is None else self.new_parser(), most_calls)


async def plan_output(
    service: Service,
    use: ToolUse,
    prompt: Sequence[int],
    source: GrammarSource | None,
    *,
    thinking_budget: int | None = None,
    continued: bool = False,
) -> OutputPlan:
    """Return the plan without blocking the event loop.

    `continued`: the output continues a message, so it has no reasoning. Raises ApiError, InvalidRequest for choices
    that cannot be enforced, and TooManyRequests.
    """
    if source is None and not use.offered and service.parsers.reasoning_format is None:
        return OutputPlan(use, None)
    answer = await service.llm.input.grammar(source)
    parsers, field = service.parsers, use.field if source is None else source.param
    if use.callable and parsers.tool_format is None:
        raise _no_tool_format(use)
    # calls that tool_choice none forbids are parsed and dropped, unless the content has a grammar
    tools = use.callable or (use.offered if parsers.tool_format is not None and source is None else ())
    if not tools and parsers.reasoning_format is None:
        return OutputPlan(use, None if answer is None else OutputConstraint(answer), constraint_field=field)
    tail = service.llm.input.prompt_tail(prompt)
    budget = None if parsers.reasoning_format is None else thinking_budget
    schemas = [tool.parameters for tool in use.callable]
    constraint = await service.llm.input.compute(
        partial(_constraint, parsers, use, tail, answer, budget),
        inline=is_small(schemas, INLINE_COST),
    )
    new_parser = partial(parsers.parser, tools=tools, prompt_tail=tail, reasoning=not continued)
    if new_parser() is None:
        return OutputPlan(use, constraint, constraint_field=field)
    return OutputPlan(use, constraint, new_parser, parsers.special_ids(tools=bool(tools)), field)


def _constraint(
    parsers: Parsers, use: ToolUse, tail: str, answer: Grammar | None, budget: int | None
) -> OutputConstraint | None:
    try:
        constraint = parsers.constraint(
            tools=use.callable,
            choice=use.choice,
            parallel=use.parallel,
            prompt_tail=tail,
            answer=answer,
            thinking_budget=budget,
        )
    except UnsupportedChoice as error:
        raise bad_field("tool_choice", f"tool_choice: {error}") from None
    if use.callable and constraint is not None and constraint.grammar is not None:
        try:
            check_grammar(constraint.grammar)
        except BadGrammar as error:
            raise _bad_schema(use, error) from None
    return constraint


def _bad_schema(use: ToolUse, error: BadGrammar) -> ApiError:
    """Name the tool with the faulty schema, if there is one."""
    name = use.field
    for index, tool in enumerate(use.offered):
        if tool in use.callable:
            try:
                check_grammar(Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps(tool.parameters).decode()))
            except BadGrammar as own:
                return bad_field(f"{name}[{index}]", f"{name}[{index}]: the parameters of {tool.name!r}: {own}")
    return bad_field(name, f"{name}: {error}")


def _no_tool_format(use: ToolUse) -> ApiError:
    return bad_field(
        use.field,
        f"{use.field}: how this model writes tool calls is not known: start the server with --tool-call-parser, or "
        "forbid calls with tool_choice none",
    )
