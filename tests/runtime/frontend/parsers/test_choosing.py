import logging

import pytest

from kvasir.config.options import ConfigError
from kvasir.frontend.parsers import Parsers
from runtime.frontend.parsers.outputs import TOKENIZER

QWEN3 = """{%- if tools %}For each function call, return a json object within <tool_call></tool_call> XML tags:
<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{% endif %}
{{- '<|im_start|>assistant\n' }}{%- if not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"""
TEMPLATES = {
    "hermes": """<tool_call>\n{"name": <function-name>, "arguments": <args-dict>}\n</tool_call>""",
    "qwen3_coder": "<tool_call>\n<function=example>\n<parameter=p>\nvalue\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": "<|start_header_id|> {{ '{\"name\": \"' + tool_call.name + '\", ' }}{{ '\"parameters\": ' }}",
    "llama4_pythonic": "{{ '<|python_start|>' }}[func_name1(params_name1=params_value1)]",
    "mistral": "{{ '[AVAILABLE_TOOLS]' }}{{ '[TOOL_CALLS][' }}",
    "deepseek_v3": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>'}}```json",
    "deepseek_v31": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>'}}",
    "granite": "{{ '<|start_of_role|>assistant<|tool_call|>' }}",
    "openai": "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_tool_format_is_found_in_the_template(name: str) -> None:
    for asked in (None, "auto"):
        assert Parsers.choose(TEMPLATES[name], TOKENIZER, asked, None).tool_format == name


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN3, "qwen3"),
        ("{{ '<｜Assistant｜><think>\\n' }} split('</think>')", "deepseek_r1"),
        ("[THINK]x[/THINK][INST]", "mistral"),
        ("Here is my thought process: x Here is my response:", "granite"),
        ("<seed:think></seed:think>", "seed_oss"),
        (TEMPLATES["openai"], "openai_gptoss"),
        (TEMPLATES["hermes"], None),
    ],
)
def test_reasoning_format_is_found_in_the_template(template: str, name: str | None) -> None:
    assert Parsers.choose(template, TOKENIZER, None, None).reasoning_format == name


def test_qwen3_has_both_formats() -> None:
    made = Parsers.choose(QWEN3, TOKENIZER, None, None)
    assert (made.tool_format, made.reasoning_format) == ("hermes", "qwen3")


@pytest.mark.parametrize("template", [None, "", "{{ messages }}"])
def test_template_without_marks_has_no_formats(template: str | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = Parsers.choose(template, TOKENIZER, None, None)
    assert (made.tool_format, made.reasoning_format) == (None, None)
    assert [record.getMessage() for record in caplog.records] == [
        "tool format: none (no known marks in the chat template; choose one with --tool-call-parser)",
        "reasoning format: none (no known marks in the chat template; choose one with --reasoning-parser)",
    ]


def test_ambiguous_template_has_no_format(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    template = TEMPLATES["mistral"] + TEMPLATES["hermes"]
    assert Parsers.choose(template, TOKENIZER, None, None).tool_format is None
    assert "fits several: hermes, mistral; choose one with --tool-call-parser" in caplog.text


def test_choice_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Parsers.choose(TEMPLATES["mistral"], TOKENIZER, None, "qwen3")
    assert [record.getMessage() for record in caplog.records] == [
        "tool format: mistral (the chat template has '[TOOL_CALLS]')",
        "reasoning format: qwen3 (--reasoning-parser)",
    ]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--tool-call-parser hermez: no tool .*hermes, qwen3_coder, .*openai"):
        Parsers.choose(None, TOKENIZER, "hermez", None)
    with pytest.raises(ConfigError, match=r"--reasoning-parser r1: .*deepseek_r1"):
        Parsers.choose(None, TOKENIZER, None, "r1")


def test_harmony_goes_with_no_other_format() -> None:
    assert Parsers.choose(None, TOKENIZER, "openai", None).reasoning_format == "openai_gptoss"
    assert Parsers.choose(None, TOKENIZER, None, "openai_gptoss").tool_format == "openai"
    with pytest.raises(ConfigError, match="not with hermes"):
        Parsers.choose(None, TOKENIZER, "hermes", "openai_gptoss")
