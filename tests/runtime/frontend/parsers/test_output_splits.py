import json
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvasir.frontend.parsers.streaming.harmony import MAX_HEADER_CHARACTERS
from runtime.frontend.parsers.outputs import NAMES, calls, content, outputs, parse, parsers, reasoning

CASES = [(name, text) for name in NAMES for text in outputs(name)]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_events_are_the_same_for_every_split(name: str, text: str) -> None:
    made = parsers(name)
    whole = parse(made, [text])
    assert parse(made, text) == whole
    for place in range(1, len(text)):
        assert parse(made, [text[:place], text[place:]]) == whole


@pytest.mark.parametrize(("name", "text"), [case for case in CASES if len(case[1]) < 300])
def test_truncated_outputs_are_split_alike(name: str, text: str) -> None:
    made = parsers(name)
    for end in range(len(text)):
        for is_cut in (False, True):
            assert parse(made, text[:end], is_cut=is_cut) == parse(made, [text[:end]], is_cut=is_cut)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "openai"])
@pytest.mark.parametrize("reasoning_name", ["think", "deepseek_r1"])
def test_reasoning_before_calls_is_split_alike(name: str, reasoning_name: str) -> None:
    made = parsers(name, reasoning_name)
    text = f"<think>\nOne < two </thin, {outputs(name)[0]}\n</think>\n\n{outputs(name)[0]}"
    whole = parse(made, [text])
    assert reasoning(whole) == f"\nOne < two </thin, {outputs(name)[0]}\n"
    assert calls(whole) == calls(parse(parsers(name), [outputs(name)[0]]))
    assert parse(made, text) == whole
    for place in range(1, len(text), 3):
        assert parse(made, [text[:place], text[place:]]) == whole


@pytest.mark.parametrize("length", [MAX_HEADER_CHARACTERS, MAX_HEADER_CHARACTERS + 1])
def test_long_headers_of_harmony_are_split_alike(length: int) -> None:
    made, beginning = parsers("openai"), "<|channel|>analysis "
    text = f"{beginning}{'x' * (length - len(beginning))}<|message|>a<|end|>b<|message|>c"
    is_header = length <= MAX_HEADER_CHARACTERS
    for each in (text, text.replace("<|message|>", "<|end|> <|message|>", 1)):
        whole = parse(made, [each])
        assert reasoning(whole) == ("a" if is_header and each is text else "")
        for size in (1, 7, MAX_HEADER_CHARACTERS):
            assert parse(made, [each[place : place + size] for place in range(0, len(each), size)]) == whole


WORDS = """<tool_call> </tool_call> <function=f> <parameter=a> </parameter> </function> [TOOL_CALLS] [ARGS]
<|python_tag|> <|channel|>analysis <|message|> <|end|> <|call|> <|start|>assistant to=functions.f <think> </think>
{"name":"f","arguments":{"a":[1,"x"]}} {"name": "f", "parameters": [f(a=1)] , ; { } [ ] " \\ \\u00e5 f ```json é 1e5
<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> function <｜tool▁sep｜> <｜tool▁call▁end｜> 'x' ``` // /* */ #
[{"name":"f","arguments":{}}] {"function":{"name":"g","arguments":{"a":"x"//c}} f[ARGS]{} [g()]"""
FRAGMENTS = st.sampled_from([*WORDS.split(), " ", "\n", "\n\n"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(NAMES),
    parts=st.lists(FRAGMENTS | st.text(max_size=4), max_size=14),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
@example(name="hermes", parts=["<tool_call>", "{", '"name": "f"', "}"], sizes=[1])
def test_any_text_is_split_alike(name: str, parts: list[str], sizes: list[int]) -> None:
    made, text = parsers(name, None if name == "openai" else "think"), "".join(parts)
    pieces: list[str] = []
    place = 0
    while place < len(text):
        pieces.append(text[place : place + sizes[len(pieces) % len(sizes)]])
        place += len(pieces[-1])
    events = parse(made, pieces)
    assert events == parse(made, [text]) == parse(made, text)
    for _, arguments in calls(events):
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "openai"])
def test_a_word_at_any_place_is_in_an_event(name: str) -> None:
    text, made = outputs(name)[0], parsers(name)
    for place in range(len(text)):
        events = parse(made, [f"{text[:place]} qz {text[place:]}"])
        found = content(events) + "".join(name + arguments for name, arguments in calls(events))
        assert "qz" in found, text[:place]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_arguments_of_whole_calls_are_json(name: str, text: str) -> None:
    for _, arguments in calls(parse(parsers(name), [text])):
        assert isinstance(json.loads(arguments), dict)


UNITS = [
    "<",
    "<tool_call>",
    '<tool_call>{"a": "',
    "[",
    "[TOOL_CALLS]",
    "<|channel|>",
    " ",
    "{",
    '{"a":',
    "</parameter>",
]
BEGINNINGS = ["", '<tool_call>{"name": "f", "arguments": {"a": "', "<tool_call><function=f><parameter=a>"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear_in_the_output(name: str, unit: str) -> None:
    made = parsers(name)
    for beginning in BEGINNINGS:
        text = beginning + unit * (20_000 // len(unit))
        begun = time.process_time()
        parse(made, [text])
        parse(made, (text[place : place + 7] for place in range(0, len(text), 7)))
        assert time.process_time() - begun < 0.3  # usually 0.01 s


def test_a_million_marks_take_a_few_seconds() -> None:
    begun = time.process_time()
    parse(parsers("hermes"), ["<" * 1_000_000])
    parse(parsers("hermes"), ["<<<<"] * 250_000)
    assert time.process_time() - begun < 10
