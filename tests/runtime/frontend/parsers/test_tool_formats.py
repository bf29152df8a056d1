import json

import pytest

from kvasir.frontend.parsers.format_plugins import try_tool_format
from kvasir.frontend.parsers.formats.descriptions import ToolFormat
from kvasir.frontend.parsers.formats.tool_formats import TOOL_FORMATS
from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, Tool
from kvasir.frontend.parsers.streaming.emitter import MAX_HELD_CHARACTERS
from runtime.frontend.parsers.outputs import (
    ARGUMENTS,
    CALL,
    NAMES,
    TOOLS,
    calls,
    content,
    outputs,
    parse,
    parsers,
    reasoning,
)

JSON_FORMATS = [
    "hermes",
    "llama3_json",
    "mistral",
    "deepseek_v3",
    "deepseek_v31",
    "granite",
    "openai",
]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_json_arguments_are_passed_on_unchanged(name: str) -> None:
    assert calls(parse(parsers(name), [outputs(name)[0]]))[0] == ("weather", ARGUMENTS)


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_json_arguments_stream_while_they_arrive(name: str) -> None:
    city = "x" * MAX_HELD_CHARACTERS
    arguments = ARGUMENTS.replace("Køb", f"Køb{city}")
    text = outputs(name)[0].replace(ARGUMENTS, arguments)
    cut = text.index("tags")
    parser = parsers(name).parser(tools=TOOLS, prompt_tail="")
    assert parser is not None
    assert parser.push(text[:cut], [])[-1] == CallArguments(0, arguments[: arguments.index("tags")])


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_call_that_the_length_cuts_keeps_its_arguments(name: str) -> None:
    text = outputs(name)[0]
    events = parse(parsers(name), [text[: text.index("tags")]], is_cut=True)
    assert calls(events) == [("weather", ARGUMENTS[: ARGUMENTS.index("tags")])]
    assert content(events) == ""


@pytest.mark.parametrize("name", NAMES)
def test_text_around_calls_is_content(name: str) -> None:
    call = outputs(name)[0]
    events = parse(parsers(name), [f"Let me see.\n{call}\n"])
    if name in ("pythonic", "llama4_pythonic", "llama3_json"):
        assert (content(events), calls(events)) == (f"Let me see.\n{call}\n", [])
    else:
        assert content(events) == "Let me see."
        assert calls(events)[0][0] == "weather"


@pytest.mark.parametrize("name", NAMES)
def test_without_tools_a_call_is_content(name: str) -> None:
    made = parsers(name)
    if name == "openai":
        return
    assert made.parser(tools=[], prompt_tail="") is None


def test_whitespace_between_calls_is_dropped() -> None:
    call = CALL["hermes"]
    events = parse(parsers("hermes"), [f"One.\n\n{call}\n{call}\n\nTwo. \n"])
    assert content(events) == "One.\n\nTwo. \n"
    assert len(calls(events)) == 2


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"arguments": {"days": 1}, "name": "f", "id": [1, {}]}', '{"days": 1}'),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "id": "x"}', "{}"),
        ('{"name": "f", "parameters": {}}', "{}"),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
    ],
)
def test_json_objects_may_differ_in_form(body: str, arguments: str) -> None:
    assert parse(parsers("hermes"), [f"<tool_call>{body}</tool_call>"]) == [
        CallBegun(0, "f"),
        CallArguments(0, arguments),
    ]


@pytest.mark.parametrize(
    "body",
    [
        '{"arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": 1}',
        '{"name": 1, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "argument": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        "{}",
        "[]",
        "f(1)",
    ],
)
def test_malformed_calls_are_content(body: str) -> None:
    text = f"<tool_call>\n{body}\n</tool_call>"
    events = parse(parsers("hermes"), [text])
    assert (content(events), calls(events)) == (text, [])


@pytest.mark.parametrize("name", ["hermes", "deepseek_v3", "deepseek_v31", "llama4_pythonic"])
def test_output_cut_within_a_closing_mark_has_no_rest_of_it(name: str) -> None:
    text = outputs(name)[0] if name != "llama4_pythonic" else "<|python_start|>[now()]<|python_end|>"
    for cut in range(1, 10):
        events = parse(parsers(name), [text[:-cut]])
        assert calls(events) == calls(parse(parsers(name), [text]))
        assert content(events) == ""


@pytest.mark.parametrize("number", ["01", "-", "1e", "--1", "1.5.5"])
def test_call_with_a_wrong_number_is_content(number: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": {number}, "b": 1}}}}</tool_call>'
    events = parse(parsers("hermes"), [text])
    assert (content(events), calls(events)) == (text, [])
    assert parse(parsers("hermes"), text) == events


def test_llama_objects_that_are_not_calls_are_content() -> None:
    for text in ('{"name": "Bob", "age": 3}', '{"name": "now"}', '{"a": 1} {"name": "f", "parameters": {}}'):
        events = parse(parsers("llama3_json"), [text])
        assert (content(events), calls(events)) == (text, [])


def test_llama_calls_may_be_several() -> None:
    call = '{"name": "f", "parameters": {}}'
    for text in (f"{call}; {call}", f"{call}\n{call}", f"<|python_tag|>{call};{call}"):
        assert parse(parsers("llama3_json"), [text]) == [
            CallBegun(0, "f"), CallArguments(0, "{}"), CallBegun(1, "f"), CallArguments(1, "{}")
        ]  # fmt: skip


def test_mistral_has_two_layouts() -> None:
    made = parsers("mistral")
    new = '[TOOL_CALLS]weather[ARGS]{"days": 1}[TOOL_CALLS]now{}'
    old = '[TOOL_CALLS] [{"name": "weather", "arguments": {"days": 1}}, {"name": "now", "arguments": {}}]'
    assert parse(made, [new]) == parse(made, [old])
    assert calls(parse(made, [new])) == [("weather", '{"days": 1}'), ("now", "{}")]


def test_xml_values_follow_the_schema() -> None:
    schema = {
        "properties": {
            "text": {"type": "string"}, "whole": {"type": "integer"}, "real": {"type": "number"},
            "flag": {"type": "boolean"}, "list": {"type": "array"}, "object": {"$ref": "#/$defs/o"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "choice": {"enum": [1, 2]},
            "off": {"type": ["integer", "null"]},
        },
        "$defs": {"o": {"type": "object"}},
    }  # fmt: skip
    values = {
        "text": "12", "whole": "12", "real": "1.50", "flag": "True", "list": "['a', \"b\"]", "object": '{"a": [1]}',
        "maybe": "null", "choice": "2", "off": "None", "unknown": "3", "bad": "",
    }  # fmt: skip
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    text = f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"
    (call,) = calls(parse(parsers("qwen3_coder"), [text], tools=[Tool("f", parameters=schema)]))
    assert json.loads(call[1]) == {
        "text": "12", "whole": 12, "real": 1.5, "flag": True, "list": ["a", "b"], "object": {"a": [1]},
        "maybe": None, "choice": 2, "off": None, "unknown": "3", "bad": "",
    }  # fmt: skip


def test_xml_value_that_does_not_fit_is_a_string() -> None:
    text = "<tool_call><function=weather><parameter=days>\nmany\n</parameter></function></tool_call>"
    assert calls(parse(parsers("qwen3_coder"), [text])) == [("weather", '{"days": "many"}')]


def test_xml_texts_stream_while_they_arrive() -> None:
    city = "x" * MAX_HELD_CHARACTERS
    parser = parsers("qwen3_coder").parser(tools=TOOLS, prompt_tail="")
    assert parser is not None
    events = parser.push(f'<tool_call><function=weather><parameter=city>\nKø"b\n\nen{city}', [])
    assert events == [CallBegun(0, "weather"), CallArguments(0, f'{{"city": "Kø\\"b\\n\\nen{city}')]


def test_xml_value_keeps_marks_that_end_nothing() -> None:
    code = "a\n</parameter>\nb </function> <tool_call>\n"
    text = f"<tool_call><function=weather><parameter=city>\n{code}\n</parameter>\n</function></tool_call>"
    ((_, arguments),) = calls(parse(parsers("qwen3_coder"), [text]))
    assert json.loads(arguments) == {"city": code}


def test_pythonic_values_become_json() -> None:
    text = """[f(a='x\\'\\n\\x41\\u00e5', b=-1, c=1.5, d=True, e=None, f=[1, (2,), {'k': "v"}], g=0x10, h=false)"""
    text += ", g()]"
    ((name, arguments), empty) = calls(parse(parsers("pythonic"), [text]))
    assert (name, empty) == ("f", ("g", "{}"))
    assert json.loads(arguments) == {
        "a": "x'\nAå", "b": -1, "c": 1.5, "d": True, "e": None, "f": [1, [2], {"k": "v"}], "g": 16, "h": False
    }  # fmt: skip


@pytest.mark.parametrize("text", ["[f(1)]", "[1, 2]", "[f(a=g())]", "[f(a={1: 2})]", "[]"])
def test_python_that_is_not_a_call_is_content(text: str) -> None:
    events = parse(parsers("pythonic"), [text])
    assert (content(events), calls(events)) == (text, [])


def test_harmony_has_reasoning_content_and_calls() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    )
    events = parse(parsers("openai"), [text])
    assert (reasoning(events), content(events), calls(events)) == ("Hm.", "I look.", [("now", "{}")])


@pytest.mark.parametrize("end", ["<|call|>", ""])
def test_harmony_call_may_have_no_arguments(end: str) -> None:
    text = f"<|channel|>commentary to=functions.now <|constrain|>json<|message|>{end}"
    assert calls(parse(parsers("openai"), [text])) == [("now", "{}")]
    assert calls(parse(parsers("openai"), text)) == [("now", "{}")]


def test_harmony_prompt_may_have_begun_the_message() -> None:
    tail = "<|end|><|start|>assistant<|channel|>analysis<|message|>"
    events = parse(
        parsers("openai"), ["Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."], prompt_tail=tail
    )
    assert (reasoning(events), content(events)) == ("Hm.", "Yes.")


def test_deep_json_is_only_text() -> None:
    arguments = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert parse(parsers("hermes"), [text]) == [ContentText(text)]
    text = "[f(a=" + "[" * 100_000
    assert content(parse(parsers("pythonic"), [text])) == text


@pytest.mark.parametrize("described", [each for each in TOOL_FORMATS if isinstance(each, ToolFormat)])
def test_sample_of_each_format_is_a_call(described: ToolFormat) -> None:
    try_tool_format(described)
    assert calls(parse(parsers(described.name), [described.sample])) == [
        ("f", '{"a": "1"}' if "<parameter" in described.sample else '{"a": 1}')
    ]
