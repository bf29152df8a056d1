import pytest

from kvasir.frontend.parsers.formats.descriptions import ReasoningFormat
from kvasir.frontend.parsers.formats.reasoning_formats import REASONING_FORMATS
from runtime.frontend.parsers.outputs import (
    CALL,
    TOKENIZER,
    calls,
    content,
    make_tokenizer,
    parse,
    parsers,
    reasoning,
)

MARKED = [each for each in REASONING_FORMATS if isinstance(each, ReasoningFormat)]


@pytest.mark.parametrize("described", MARKED, ids=lambda each: each.name)
def test_reasoning_stands_between_its_marks(described: ReasoningFormat) -> None:
    for start in described.starts:
        for end in described.ends:
            events = parse(parsers(None, described.name), [f"{start}\nHm.\n{end}\n\nYes."], tools=[])
            assert (reasoning(events), content(events)) == ("\nHm.\n", "\n\nYes.")


@pytest.mark.parametrize("described", MARKED, ids=lambda each: each.name)
def test_output_without_marks_is_content_unless_assumed(described: ReasoningFormat) -> None:
    events = parse(parsers(None, described.name), [" Hm. "], tools=[])
    assert (reasoning(events) if described.assumed else content(events)) == " Hm. "


@pytest.mark.parametrize("tail", ["<|im_start|>assistant\n<think>\n", "<think>"])
def test_prompt_may_have_opened_the_reasoning(tail: str) -> None:
    events = parse(parsers("hermes", "qwen3"), ["Hm.</think>Yes."], prompt_tail=tail)
    assert (reasoning(events), content(events)) == ("Hm.", "Yes.")


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
def test_prompt_may_have_ended_the_reasoning(name: str) -> None:
    tail = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert parsers("hermes", name).parser(tools=[], prompt_tail=tail) is None
    events = parse(parsers("hermes", name), ["<think> is a mark"], prompt_tail=tail)
    assert content(events) == "<think> is a mark"


def test_marks_in_earlier_turns_do_not_count() -> None:
    tail = "<think>x</think>Hello<|im_end|><|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n"
    events = parse(parsers("hermes", "qwen3"), ["A mark."], prompt_tail=tail)
    assert content(events) == "A mark."


def test_calls_within_the_reasoning_are_not_calls() -> None:
    call = CALL["hermes"]
    events = parse(parsers("hermes", "qwen3"), [f"<think>{call}</think>\n\n{call}"])
    assert reasoning(events) == call
    assert (len(calls(events)), content(events)) == (1, "")


def test_reasoning_may_be_left_in_the_content() -> None:
    parser = parsers("hermes", "qwen3").parser(tools=[], prompt_tail="", reasoning=False)
    assert parser is None


def test_reasoning_that_is_cut_off_is_reasoning() -> None:
    events = parse(parsers(None, "qwen3"), ["<think>Hm.</thi"], tools=[])
    assert (reasoning(events), content(events)) == ("Hm.</thi", "")


def test_tokens_are_counted_by_the_end_mark() -> None:
    tokenizer = make_tokenizer(["<think>", "</think>"])
    text = "<think>It's naïve</think>The fox"
    ids = tokenizer.encode(text, add_special_tokens=False)
    expected = len(tokenizer.encode("<think>It's naïve</think>", add_special_tokens=False))
    for size in (1, 3, len(ids)):
        parser = parsers("hermes", "qwen3", tokenizer).parser(tools=[], prompt_tail="")
        assert parser is not None
        for place in range(0, len(ids), size):
            piece = ids[place : place + size]
            parser.push(tokenizer.decode(piece, skip_special_tokens=False), piece)
        assert parser.reasoning_tokens == expected


def test_tokens_are_counted_by_pieces_otherwise() -> None:
    parser = parsers("hermes", "qwen3").parser(tools=[], prompt_tail="")
    assert parser is not None
    for piece in ("<thi", "nk>", "a", "</think>", "b", "c"):
        parser.push(piece, [7])
    assert parser.reasoning_tokens == 4


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_tokens_of_the_end_mark_are_found(size: int) -> None:
    text = "<think>It's naïve</think>The fox"
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    count = next(n for n in range(len(ids)) if "</think>" in TOKENIZER.decode(ids[:n]))
    assert len(TOKENIZER.encode("</think>", add_special_tokens=False)) > 1
    parser = parsers("hermes", "qwen3").parser(tools=[], prompt_tail="")
    assert parser is not None
    held = ""
    for place in range(0, len(ids), size):  # the text comes later than its tokens, as with stop strings
        shown, held = held, TOKENIZER.decode(ids[place : place + size])
        parser.push(shown, ids[place : place + size])
    parser.push(held, [])
    assert parser.reasoning_tokens == count


def test_output_without_reasoning_has_no_reasoning_tokens() -> None:
    parser = parsers("hermes", "qwen3").parser(tools=[], prompt_tail="")
    assert parser is not None
    for piece in ("\n", "<thin", "g>", "a"):
        parser.push(piece, [7])
    assert parser.reasoning_tokens == 0


def test_harmony_counts_messages_of_the_analysis() -> None:
    parser = parsers("openai").parser(tools=[], prompt_tail="")
    assert parser is not None
    pieces = ["<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>"]
    for piece in [*pieces, "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Yes", "<|return|>"]:
        parser.push(piece, [7])
    assert parser.reasoning_tokens == len(pieces)
