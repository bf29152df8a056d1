import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.streaming.emitter import MAX_HELD_CHARACTERS
from runtime.frontend.parsers.outputs import CALL, NAMES, calls, calls_of, content, parse, parsers

JSON_CALLS: Final[dict[str, Callable[[str], str]]] = {
    "hermes": lambda text: f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>',
    "llama3_json": lambda text: f'{{"name": "f", "parameters": {text}}}',
    "mistral": lambda text: f"[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{text}",
    "deepseek_v3": lambda text: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{text}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": lambda text: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{text}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "granite": lambda text: f'<|tool_call|>[{{"name": "f", "arguments": {text}}}]',
    "openai": lambda text: f"<|channel|>commentary to=f <|constrain|>json<|message|>{text}<|call|>",
}
"""A call of f in each format with JSON, with these arguments."""
LONG: Final = "x" * MAX_HELD_CHARACTERS


@pytest.mark.parametrize("name", JSON_CALLS)
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"a": "x\ny\tz\x01"}', {"a": "x\ny\tz\x01"}),
        (r'{"a": "C:\dir \'q\' \x41"}', {"a": r"C:\dir 'q' \x41"}),
        (r'{"a": "\u12g4 \u00e5"}', {"a": r"\u12g4 å"}),
        (r'{"a": "\ud83d \ud83d\ude00 \ude00"}', {"a": "\ufffd \U0001f600 \ufffd"}),
        ('{"a": 1, "b": [1, 2,],}', {"a": 1, "b": [1, 2]}),
        ('{"a": 1 "b": 2,, "c": [1 "x"]}', {"a": 1, "b": 2, "c": [1, "x"]}),
        ('{"a": None, "b": [True, False], "c": NaN}', {"a": None, "b": [True, False], "c": None}),
        ("{'a': 'it\\'s', 'b': 'a \"b\" c', 'd': {}}", {"a": "it's", "b": 'a "b" c', "d": {}}),
        ('{a: "x", b_1: 2}', {"a": "x", "b_1": 2}),
        ('{"a": [1, ["x"}', {"a": [1, ["x"]]}),
        ('{"a": "say "hi" now"}', {"a": 'say "hi" now'}),
        ('{"a": 1e999, "b": -1e999, "c": +1, "d": .5}', {"a": 1.7976931348623157e308, "b": -1.7976931348623157e308,
                                                         "c": 1, "d": 0.5}),
        (r'{"a": "{\"}\\"}', {"a": '{"}\\'}),
    ],
)  # fmt: skip
def test_arguments_are_repaired(name: str, written: str, value: Any) -> None:
    assert calls_of(name, JSON_CALLS[name](written)) == [("f", value)]
    value = {"long": LONG, **value}
    written = f'{{"long": "{LONG}", {written[1:]}'
    assert calls_of(name, JSON_CALLS[name](written)) == [("f", value)]


@pytest.mark.parametrize("name", JSON_CALLS)
@pytest.mark.parametrize(
    "written",
    [
        '{"a": 3 * 4}',
        '{"a": f(1)}',
        '{"a" 1}',
        '{"a"; 1}',
        "{...}",
        '{"a": ...}',
        '{"a": 01}',
        '{"a": {1}',
        "[1]",
        "1",
    ],
)
def test_call_that_cannot_be_repaired_is_content(name: str, written: str) -> None:
    text = JSON_CALLS[name](written)
    events = parse(parsers(name), [text])
    assert calls(events) == []
    assert content(events).removesuffix("<|call|>") == text.removesuffix("<|call|>")


@pytest.mark.parametrize("name", JSON_CALLS)
def test_long_call_that_breaks_is_json_without_marks(name: str) -> None:
    parser = parsers(name).parser(tools=[Tool("f")], prompt_tail="")
    assert parser is not None
    events = parser.push(JSON_CALLS[name](f'{{"a": "{LONG}", "b": 3 * 4}}'), []) + parser.finish()
    assert [json.loads(arguments) for _, arguments in calls(events)] == [{"a": LONG, "b": 3}]
    assert parser.is_torn
    assert not any(mark in content(events) for mark in ("<", "｜"))


@pytest.mark.parametrize("name", JSON_CALLS)
@pytest.mark.parametrize("surplus", ["}", "}}", "\n}", "} }"])
def test_surplus_braces_are_dropped(name: str, surplus: str) -> None:
    assert calls_of(name, JSON_CALLS[name]('{"a": {}}' + surplus)) == [("f", {"a": {}})]


@pytest.mark.parametrize("name", [name for name in JSON_CALLS if name not in ("llama3_json", "mistral", "granite")])
@pytest.mark.parametrize("written", ['{"a": {"b": "x"}', '{"a": {"b": "x"', '{"a": {"b": 1, ', '{"a": {"b": ["x"'])
def test_missing_braces_are_added_before_a_mark(name: str, written: str) -> None:
    ((_, value),) = calls_of(name, JSON_CALLS[name](written))
    assert value["a"]["b"] in ("x", 1, ["x"])


@pytest.mark.parametrize("name", JSON_CALLS)
def test_call_that_the_model_does_not_end_is_content(name: str) -> None:
    whole = JSON_CALLS[name]('{"a": "some text"}')
    text = whole[: whole.index("text")]
    events = parse(parsers(name), [text])
    assert (content(events), calls(events)) == (text, [])


@pytest.mark.parametrize("name", JSON_CALLS)
def test_call_without_its_closing_marks_is_a_call(name: str) -> None:
    whole = JSON_CALLS[name]('{"a": 1}')
    for is_cut in (False, True):
        assert calls_of(name, whole[: whole.index("1}") + 2], is_cut=is_cut) == [("f", {"a": 1})]


def test_string_without_its_end_leaves_the_next_call_alone() -> None:
    torn, whole = JSON_CALLS["hermes"]('{"a": "x}'), JSON_CALLS["hermes"]('{"a": "</tool_call>"}')
    events = parse(parsers("hermes"), [f"{torn}\nMore. {whole}"])
    assert parse(parsers("hermes"), f"{torn}\nMore. {whole}") == events
    assert (content(events), calls(events)) == (f"{torn}\nMore.", [("f", '{"a": "</tool_call>"}')])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{name: "f", arguments: {"a": 1},}\n</tool_call></tool_call>'),
        ("mistral", '[TOOL_CALLS] f [CALL_ID] abc123XYZ [ARGS] {"a": 1}'),
        ("mistral", '[TOOL_CALLS]f[CALL_ID][ARGS]{"a": 1}'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}},]'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}}]]'),
        ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, ]'),
        ("pythonic", "[f(a=1),]]"),
    ],
)
def test_marks_may_be_surplus_or_apart(name: str, text: str) -> None:
    assert calls_of(name, text) == [("f", {"a": 1})]


@pytest.mark.parametrize("name", NAMES)
def test_call_of_a_function_not_offered_is_content(name: str) -> None:
    text = CALL[{"llama4_pythonic": "pythonic"}.get(name, name)]
    events = parse(parsers(name), [text], tools=[Tool("other")])
    assert calls(events) == []
    assert content(events) == text.replace("<|channel|>analysis<|message|>Hm <b>.<|end|>", "").removesuffix(
        "<|call|>"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", '[TOOL_CALLS][{}{"name": "f", "arguments": {}}{}]'),
        ("granite", '<|tool_call|>[{}{"name": "f", "arguments": {}}{}]'),
        ("pythonic", "[{}f(){}]"),
        (
            "deepseek_v31",
            "<｜tool▁calls▁begin｜>{}<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>{}<｜tool▁calls▁end｜>",
        ),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_call_not_offered_is_content(name: str, text: str, is_first: bool) -> None:
    other = {
        "pythonic": "nope(a=1)",
        "deepseek_v31": '<｜tool▁call▁begin｜>nope<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>',
    }.get(name, '{"name": "nope", "arguments": {"a": 1}}')
    comma = "" if name == "deepseek_v31" else ", "
    before, middle, after = (f"{other}{comma}", "{}", "") if is_first else ("", "{}", f"{comma}{other}")
    first, *between, last = text.split("{}")
    written = f"{first}{before}{middle.join(between)}{after}{last}"
    events = parse(parsers(name), [written])
    assert calls(events) == [("f", "{}")]
    assert content(events) == other


DAMAGE: Final = st.sampled_from(
    [
        "",
        "\n",
        "\t",
        "\\",
        "\\d",
        "\\u12",
        '"',
        "'",
        ",",
        "}",
        "{",
        "]",
        "[",
        ":",
        "None",
        "</",
        "//",
        "/*",
        "#",
        "```",
        "<",
        "\x00",
        " ",
        "é",
    ]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(NAMES),
    place=st.floats(0, 1),
    removed=st.integers(0, 3),
    added=DAMAGE,
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    long=st.booleans(),
)
def test_damaged_call_is_json_or_content(
    name: str, place: float, removed: int, added: str, sizes: list[int], long: bool
) -> None:
    """Whatever is damaged: no call has arguments that are not JSON, and each split gives the same events."""
    text = CALL[{"llama4_pythonic": "pythonic"}.get(name, name)]
    text = text.replace("Køb", f"Køb{LONG}") if long else text
    index = int(place * len(text))
    text = f"{text[:index]}{added}{text[index + removed :]}"
    pieces: list[str] = []
    start = 0
    while start < len(text):
        pieces.append(text[start : start + sizes[len(pieces) % len(sizes)]])
        start += len(pieces[-1])
    events = parse(parsers(name), [text])
    assert parse(parsers(name), pieces) == events
    for _, arguments in calls(events):
        assert isinstance(json.loads(arguments), dict)
    if not calls(events) and name != "openai":
        assert content(events) == text


NUMBERS: Final = st.floats(allow_nan=False, allow_infinity=False) | st.integers()
VALUES: Final = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    max_leaves=8,
)


@settings(deadline=None)
@given(value=VALUES, indent=st.sampled_from([None, 1]), is_ascii=st.booleans())
def test_valid_arguments_are_not_changed(value: Any, indent: int | None, is_ascii: bool) -> None:
    written = json.dumps({"a": value}, indent=indent, ensure_ascii=is_ascii)
    assert calls(parse(parsers("hermes"), [JSON_CALLS["hermes"](written)])) == [("f", written)]
