from collections.abc import Sequence

import pytest

from kvasir.frontend.parsers import Parsers, ToolChoice, UnsupportedChoice
from kvasir.frontend.parsers.parsed import Tool
from kvasir.hub.tokenizer import Tokenizer
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from runtime.frontend.parsers.grammar_walks import Walker
from runtime.frontend.parsers.outputs import MARKS, SPECIAL_TOKENS, TOKENIZER, make_tokenizer, parsers

SPECIAL = make_tokenizer(SPECIAL_TOKENS)
TOKENIZERS = {
    "text": TOKENIZER,
    "special": SPECIAL,
    "added": make_tokenizer(added=MARKS),
    "mixed": make_tokenizer(SPECIAL_TOKENS[:-2], added=MARKS[-7:]),
}
PING = Tool("ping", strict=True)
ANSWER = Grammar(GrammarKind.JSON_SCHEMA, '{"const": 1}')
CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
OPENED, ENDED = "<|assistant|><think>\n", "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def constraint(
    made: Parsers,
    choice: ToolChoice = ToolChoice.NONE,
    *,
    tail: str = "",
    answer: Grammar | None = None,
    budget: int | None = None,
    tools: Sequence[Tool] = (PING,),
) -> OutputConstraint | None:
    return made.constraint(
        tools=tools, choice=choice, parallel=True, prompt_tail=tail, answer=answer, thinking_budget=budget
    )


def text_of(made: OutputConstraint | None) -> str:
    assert made is not None
    assert made.grammar is not None
    return made.grammar.text


def test_no_constraint_without_demand() -> None:
    for made in (parsers("hermes", "qwen3"), parsers(None), parsers("openai")):
        assert constraint(made) is None
        assert constraint(made, ToolChoice.AUTO, tools=[Tool("f")]) is None


def test_answer_alone_is_passed_on() -> None:
    for made in (parsers("hermes"), parsers(None)):
        assert constraint(made, answer=ANSWER) == OutputConstraint(ANSWER)
    assert constraint(parsers(None, "qwen3"), answer=ANSWER, tail=ENDED) == OutputConstraint(ANSWER)


def test_grammar_begins_behind_reasoning_that_is_open(tokenizer: Tokenizer) -> None:
    end = tokenizer.encode("</think>", add_special_tokens=False)
    for made, tail in (
        (parsers("hermes", "qwen3", tokenizer), OPENED),
        (parsers("hermes", "deepseek_r1", tokenizer), ""),
    ):
        assert constraint(made, answer=ANSWER, tail=tail) == OutputConstraint(ANSWER, tuple(end))
        found = constraint(made, ToolChoice.REQUIRED, tail=tail)
        assert found is not None
        assert found.reasoning_end == tuple(end)
        walker = Walker(tokenizer)
        assert walker.accepts(text_of(found), CALL)
        assert walker.accepts(text_of(found), "\n\n" + CALL)
        assert not walker.allows(text_of(found), "<think>")


def test_model_may_reason_first_or_not(tokenizer: Tokenizer) -> None:
    walker = Walker(tokenizer)
    made = parsers("hermes", "qwen3", tokenizer)
    forced = text_of(constraint(made, ToolChoice.REQUIRED))
    answered = text_of(constraint(made, answer=ANSWER))
    assert walker.accepts(forced, CALL)
    assert walker.accepts(forced, f"<think>\nHm. <tool_call>\n</think>\n\n{CALL}")
    assert not walker.accepts(forced, "<think>\nHm.</think>")
    assert not walker.allows(forced, "<think>Hm.</think>Yes")
    assert walker.accepts(answered, "1")
    assert walker.accepts(answered, "<think>2</think>1")
    assert not walker.allows(answered, "2")


def test_strict_call_in_the_reasoning_is_free_text(tokenizer: Tokenizer) -> None:
    walker = Walker(tokenizer)
    lark = text_of(constraint(parsers("hermes", "qwen3", tokenizer), ToolChoice.AUTO))
    assert walker.accepts(lark, f"<think>a <tool_call> b</think>Yes. {CALL}")
    assert not walker.accepts(lark, "<think>a</think><tool_call> b")


def test_prompt_that_ended_the_reasoning_leaves_none(tokenizer: Tokenizer) -> None:
    found = constraint(parsers("hermes", "qwen3", tokenizer), ToolChoice.REQUIRED, tail=ENDED, budget=5)
    assert found is not None
    assert (found.reasoning_end, found.thinking_budget) == ((), None)
    assert Walker(tokenizer).accepts(text_of(found), CALL)


def test_budget_is_the_engines(tokenizer: Tokenizer) -> None:
    end = tuple(tokenizer.encode("</think>", add_special_tokens=False))
    made = parsers("hermes", "qwen3", tokenizer)
    start = tokenizer.backend.token_to_id("<think>")
    assert (start is None) is (tokenizer is TOKENIZER)
    assert constraint(made, budget=7) == OutputConstraint(None, end, 7, start)
    assert constraint(made, answer=ANSWER, budget=7) == OutputConstraint(ANSWER, end, 7, start)
    assert constraint(made, budget=7, tail=OPENED) == OutputConstraint(None, end, 7)
    found = constraint(made, ToolChoice.REQUIRED, budget=0)
    assert found is not None
    assert (found.reasoning_end, found.thinking_budget) == (end, 0)
    assert Walker(tokenizer).accepts(text_of(found), CALL)


def test_ebnf_answer_begins_behind_the_reasoning() -> None:
    answer = Grammar(GrammarKind.EBNF, 'root ::= "a"')
    found = constraint(parsers(None, "qwen3"), answer=answer)
    assert found is not None
    assert found.grammar == answer
    assert found.reasoning_end


def test_harmony_reasons_in_a_message(tokenizer: Tokenizer) -> None:
    walker = Walker(tokenizer)
    made = parsers("openai", None, tokenizer)
    final, analysis = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    answered = text_of(constraint(made, answer=ANSWER))
    assert walker.accepts(answered, f"{final}1")
    assert walker.accepts(answered, f"{analysis}{final}1")
    assert not walker.allows(answered, f"{analysis}{final}2")
    budgeted = constraint(made, answer=ANSWER, budget=3)
    assert budgeted is not None
    assert budgeted.reasoning_end == tuple(tokenizer.encode("<|end|>", add_special_tokens=False))
    assert walker.accepts(text_of(budgeted), f"<|start|>assistant{final}1")


def test_budget_without_a_reasoning_format_is_refused() -> None:
    with pytest.raises(UnsupportedChoice, match="--reasoning-parser"):
        constraint(parsers("hermes"), budget=1)


def test_forced_call_without_a_tool_format_is_refused() -> None:
    with pytest.raises(UnsupportedChoice, match="--tool-call-parser"):
        constraint(parsers(None), ToolChoice.REQUIRED)
    assert constraint(parsers(None), ToolChoice.AUTO) is None
