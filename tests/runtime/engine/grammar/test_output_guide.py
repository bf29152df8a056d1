import numpy as np
import pytest

from kvasir.engine.engine_request import GuideError
from kvasir.engine.grammar.output_guide import OutputGuide
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint

from .byte_vocabulary import EOS, VOCAB, allowed, guide_for

DIGITS = Grammar(GrammarKind.REGEX, "[0-9]{1,2}")
ALL = list(range(VOCAB))
TEXT = list(range(256))


def tokens(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def test_a_grammar_holds_from_the_first_token() -> None:
    guide = guide_for(OutputConstraint(DIGITS))
    assert not guide.is_free
    assert allowed(guide) == sorted(tokens("0123456789"))
    guide.accept(tokens("1"))
    assert allowed(guide) == [*sorted(tokens("0123456789")), EOS]
    assert not guide.is_complete
    guide.accept(tokens("2"))
    assert guide.is_complete
    assert allowed(guide) == [EOS]


def test_only_the_end_may_follow_a_complete_grammar() -> None:
    guide = guide_for(OutputConstraint(DIGITS))
    guide.accept([*tokens("12"), EOS, EOS])
    assert guide.is_complete
    assert allowed(guide) == [EOS]
    with pytest.raises(GuideError, match="token 51"):
        guide.accept(tokens("3"))


@pytest.mark.parametrize("output", [[EOS], tokens("x"), tokens("123"), [*tokens("1"), EOS, *tokens("2")]])
def test_a_forbidden_token_is_an_error(output: list[int]) -> None:
    with pytest.raises(GuideError):
        guide_for(OutputConstraint(DIGITS)).accept(output)


def test_the_grammar_begins_after_the_reasoning() -> None:
    guide = guide_for(OutputConstraint(DIGITS, reasoning_end=tokens("</t>")))
    assert not guide.is_free
    assert allowed(guide) == TEXT  # the end is forbidden while the grammar is still to come
    guide.accept(tokens("thinking </t"))
    assert allowed(guide) == TEXT
    guide.accept(tokens(">"))
    assert allowed(guide) == sorted(tokens("0123456789"))
    guide.accept([*tokens("42"), EOS])
    assert guide.is_complete


def test_an_end_within_the_reasoning_is_an_error() -> None:
    with pytest.raises(GuideError, match="before its grammar"):
        guide_for(OutputConstraint(DIGITS, reasoning_end=tokens("<"))).accept([EOS])
    guide_for(OutputConstraint(reasoning_end=tokens("<"))).accept([EOS])


def test_reasoning_may_end_with_the_token_that_ends_the_sequence() -> None:
    guide = guide_for(OutputConstraint(DIGITS, reasoning_end=(EOS,)))
    assert allowed(guide) == ALL
    guide.accept([*tokens("a"), EOS])
    assert allowed(guide) == sorted(tokens("0123456789"))


@pytest.mark.parametrize(
    ("end", "output", "ended"),
    [
        ("aab", "aaab", True),
        ("aab", "aacab", False),
        ("abab", "abaabab", True),
        ("ababc", "abababc", True),
        ("aa", "aba", False),
        ("a", "bba", True),
    ],
)
def test_the_end_of_the_reasoning_is_found_everywhere(end: str, output: str, ended: bool) -> None:
    guide = guide_for(OutputConstraint(DIGITS, reasoning_end=tokens(end)))
    guide.accept(tokens(output))
    assert (allowed(guide) == sorted(tokens("0123456789"))) is ended


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_thinking_budget_forces_the_end(budget: int) -> None:
    guide = guide_for(OutputConstraint(DIGITS, reasoning_end=tokens("</t>"), thinking_budget=budget))
    guide.accept(tokens("abc")[:budget])
    for expected in tokens("</t>"):
        assert not guide.is_free
        assert allowed(guide) == [expected]
        with pytest.raises(GuideError, match="budget"):
            guide.accept(tokens("x"))
        guide.accept([expected])
    assert allowed(guide) == sorted(tokens("0123456789"))


def test_only_what_may_follow_for_certain_is_forced() -> None:
    constant = Grammar(GrammarKind.JSON_SCHEMA, '{"const": "ab"}')
    thinking = guide_for(OutputConstraint(constant, tokens("</t>"), thinking_budget=1, reasoning_start=ord("T")))
    assert list(thinking.forced_tokens()) == []
    thinking.accept(tokens("T"))
    assert list(thinking.forced_tokens()) == [ord("<")]
    thinking.accept(tokens("</t>"))
    assert bytes(thinking.forced_tokens()) == b'"ab"'
    free = guide_for(OutputConstraint(constant, tokens("</t>")))
    assert list(free.forced_tokens()) == []
    free.accept(tokens('</t>"ab"'))
    assert list(free.forced_tokens()) == []


def test_a_budget_goes_on_with_an_end_that_has_begun() -> None:
    guide = guide_for(OutputConstraint(reasoning_end=tokens("</t>"), thinking_budget=4))
    guide.accept(tokens("ab</"))
    assert allowed(guide) == list(tokens("t"))


def test_a_constraint_without_a_grammar_is_free() -> None:
    guide = guide_for(OutputConstraint(reasoning_end=tokens("<"), thinking_budget=2))
    assert guide.is_free
    assert allowed(guide) == ALL
    guide.accept(tokens("ab"))
    assert not guide.is_free
    guide.accept(tokens("<"))
    assert guide.is_free
    assert not guide.is_complete
    guide.accept([*tokens("anything"), EOS])
    assert allowed(guide) == ALL


def test_any_number_of_end_tokens_may_follow_a_complete_output() -> None:
    guide = guide_for(OutputConstraint(Grammar(GrammarKind.REGEX, "a")))
    guide.accept([*tokens("a"), *[EOS] * 5_000])
    assert guide.is_complete


def test_the_first_token_decides_whether_there_is_a_reasoning() -> None:
    constraint = OutputConstraint(DIGITS, tokens("</t>"), thinking_budget=3, reasoning_start=ord("T"))
    guide = guide_for(constraint)
    assert allowed(guide) == sorted(tokens("0123456789T"))
    guide.accept(tokens("4"))
    assert allowed(guide) == [*sorted(tokens("0123456789")), EOS]
    guide = guide_for(constraint)
    guide.accept(tokens("Tab"))
    for expected in tokens("</t>"):
        assert allowed(guide) == [expected]
        guide.accept([expected])
    assert allowed(guide) == sorted(tokens("0123456789"))


def test_a_budget_does_not_end_a_reasoning_that_has_not_begun() -> None:
    guide = guide_for(OutputConstraint(None, tokens("</t>"), thinking_budget=0, reasoning_start=ord("T")))
    assert guide.is_free
    guide.accept(tokens("answer T"))
    assert guide.is_free
    guide = guide_for(OutputConstraint(None, tokens("</t>"), thinking_budget=0, reasoning_start=ord("T")))
    guide.accept(tokens("T"))
    assert not guide.is_free
    assert allowed(guide) == list(tokens("<"))


def test_no_end_is_forced_while_a_reasoning_may_begin() -> None:
    empty = Grammar(GrammarKind.LARK, 'start: ""')
    guide = guide_for(OutputConstraint(empty, tokens("<"), reasoning_start=ord("T")))
    assert not guide.is_complete
    assert allowed(guide) == [ord("T"), EOS]


def test_equal_outputs_lead_to_equal_masks() -> None:
    constraint = OutputConstraint(
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'), reasoning_end=tokens("</t>"), thinking_budget=5
    )
    output = tokens('think</t>{"a": [1, {"b": null}]}')
    step, whole = guide_for(constraint), guide_for(constraint)
    for place, token in enumerate(output):
        again = guide_for(constraint)
        again.accept(output[:place])
        assert allowed(again) == allowed(step)
        assert token in allowed(step)
        step.accept([token])
    whole.accept(output)
    assert whole.is_complete
    assert step.is_complete


@pytest.mark.parametrize(
    "constraint", [OutputConstraint(DIGITS), OutputConstraint(DIGITS, reasoning_end=tokens("1"), thinking_budget=2)]
)
@pytest.mark.parametrize("output", ["", "4"])
def test_a_copy_advances_by_itself(constraint: OutputConstraint, output: str) -> None:
    guide, copied_from = guide_for(constraint), guide_for(constraint)
    for each in (guide, copied_from):
        each.accept(tokens(output))
    before = allowed(guide)
    ahead = copied_from.copy()
    with pytest.raises(GuideError):
        ahead.accept(tokens("11x"))
    assert allowed(copied_from) == before
    for each in (guide, copied_from):
        each.accept(tokens("1"))
    assert allowed(copied_from) == allowed(guide)


def test_no_bit_is_set_outside_of_the_vocabulary() -> None:
    for vocab_size, known in ((40, VOCAB), (VOCAB, VOCAB)):
        for end in ((), (7,)):
            guide = guide_for(OutputConstraint(DIGITS))
            sized = OutputGuide(
                OutputConstraint(DIGITS, reasoning_end=end),
                guide._matcher,
                vocab_size=vocab_size,
                known_tokens=known,
                eos_token_ids=[],
            )
            mask = np.full(-(-vocab_size // 32), 0xFFFFFFFF, np.uint32)
            sized.fill(mask)
            assert all(
                token < vocab_size for token in np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0]
            )


def test_a_grammar_may_name_an_end_token_in_the_middle() -> None:
    guide = guide_for(OutputConstraint(Grammar(GrammarKind.LARK, 'start: "a" <[256]> "b"')))
    guide.accept([*tokens("a"), EOS])
    assert not guide.is_complete
    assert allowed(guide) == list(tokens("b"))
    guide.accept([*tokens("b"), EOS])
    assert guide.is_complete
