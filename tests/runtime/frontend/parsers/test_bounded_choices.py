import json

import pytest

from kvasir.frontend.parsers import Parsers, ToolChoice
from kvasir.frontend.parsers.formats.tool_formats import TOOL_FORMATS
from kvasir.frontend.parsers.parsed import Tool
from kvasir.grammar_bounds import check_grammar
from kvasir.request.constraint import Grammar, GrammarKind
from runtime.frontend.harness import demo_model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
TOOLS = [Tool("f", parameters=SCHEMA, strict=True), Tool("g")]
ANSWER = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))


@pytest.mark.parametrize("name", [each.name for each in TOOL_FORMATS])
@pytest.mark.parametrize("choice", [ToolChoice.REQUIRED, ToolChoice.AUTO])
@pytest.mark.parametrize("answer", [None, ANSWER])
def test_the_grammar_of_a_choice_is_accepted(name: str, choice: ToolChoice, answer: Grammar | None) -> None:
    reasoning = "openai_gptoss" if name == "openai" else None
    parsers = Parsers.choose(None, demo_model()[1], name, reasoning)
    constraint = parsers.constraint(
        tools=TOOLS, choice=choice, parallel=True, prompt_tail="", answer=answer, thinking_budget=None
    )
    assert constraint is not None
    assert constraint.grammar is not None
    check_grammar(constraint.grammar)  # raises BadGrammar
