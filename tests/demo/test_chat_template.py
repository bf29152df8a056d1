import random
from pathlib import Path
from typing import Any, Final

import pytest
import transformers

from corpus_texts import CORPUS, TOOLS
from demo.batches import SPECIAL, Batches
from demo.train import train_tokenizer
from kvasir.hub.chat_templates.chat_template import ChatTemplate, ChatTemplateError

PACKAGED: Final = Path(__file__).resolve().parents[2] / "runtime/kvasir/hub/demo"
TEMPLATE: Final = ChatTemplate((PACKAGED / "chat_template.jinja").read_text(), {"bos_token": "<|begin|>"})
BEFORE_TOOLS: Final = ChatTemplate(
    """{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + (message.content | trim) + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
""",
    {"bos_token": "<|begin|>"},
)

CITY: Final = {"city": {"type": "string", "description": "Name of the city"}}
WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False},
    },
}
LISTED: Final = '<|system|><tools>\n{"name": "get_weather", "parameters": {"city": "string"}}\n</tools><|end|>'


def call(city: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}


@pytest.mark.parametrize("generate", [True, False])
def test_conversations_without_tools_have_no_mark_of_tools(generate: bool) -> None:
    rng = random.Random(0)
    for _ in range(300):
        roles = rng.choices(["system", "user", "assistant"], k=rng.randint(0, 6))
        messages = [{"role": role, "content": rng.choice(["", " a ", "b\n", "ä {{ x }}"])} for role in roles]
        before = BEFORE_TOOLS.render(messages, add_generation_prompt=generate)
        assert TEMPLATE.render(messages, add_generation_prompt=generate) == before
        assert TEMPLATE.render(messages, add_generation_prompt=generate, tools=[]) == before


def test_tools_are_listed_behind_the_system_prompt() -> None:
    asked = [{"role": "user", "content": "Weather in Paris"}]
    rest = "<|user|>Weather in Paris<|end|><|assistant|>"
    assert TEMPLATE.render(asked, tools=[WEATHER]) == f"<|begin|>{LISTED}{rest}"
    system = {"role": "system", "content": " Be brief. "}
    text = TEMPLATE.render([system, *asked], tools=[WEATHER])
    assert text == "<|begin|>" + LISTED.replace("<tools>", "Be brief.\n<tools>") + rest


@pytest.mark.parametrize(
    ("parameters", "listed"),
    [
        (None, "{}"),
        ({"type": "object"}, "{}"),
        ({"properties": {"a": True, "b": {"anyOf": []}}}, '{"a": "any", "b": "any"}'),
        ({"properties": {"a": {"type": ["string", "null"]}}}, '{"a": "any"}'),
        (
            {"properties": {"x": {"type": "integer"}, "items": {"type": "array"}}},
            '{"x": "integer", "items": "array"}',
        ),
    ],
)
def test_any_parameters_are_listed(parameters: dict[str, Any] | None, listed: str) -> None:
    function = {"name": "f"} if parameters is None else {"name": "f", "parameters": parameters}
    text = TEMPLATE.render([], tools=[{"type": "function", "function": function}])
    assert f'{{"name": "f", "parameters": {listed}}}' in text


def test_calls_stand_in_tags_and_results_in_a_row_are_one_turn() -> None:
    calls = {"role": "assistant", "content": "", "tool_calls": [call("Zürich"), call("Rome")]}
    results = [{"role": "tool", "content": "18 °C"}, {"role": "tool", "content": "20 °C", "tool_call_id": "b"}]
    text = TEMPLATE.render([calls, *results], tools=[WEATHER])
    assert text == (
        f"<|begin|>{LISTED}<|assistant|>"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|end|>'
        "<|user|><tool_response>\n18 °C\n</tool_response>\n<tool_response>\n20 °C\n</tool_response><|end|>"
        "<|assistant|>"
    )


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="system, user, assistant and tool, not critic"):
        TEMPLATE.render([{"role": "critic", "content": "42"}])


def test_transformers_renders_the_same() -> None:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(PACKAGED)
    rng = random.Random(1)
    for _ in range(50):
        offer, cases = TOOLS.sample(rng)
        messages = [message for _ in range(2) for message in next(cases).messages()]
        theirs = tokenizer.apply_chat_template(messages, tools=offer.tools or None, tokenize=False)
        assert TEMPLATE.render(messages, tools=offer.tools, add_generation_prompt=False) == theirs


def test_the_model_is_trained_on_what_the_template_renders() -> None:
    tokenizer = train_tokenizer(CORPUS, 400)
    batches = Batches(CORPUS, tokenizer, random.Random(2))
    for offer, case in TOOLS.listed()[::7]:
        row = batches.begin("", offer)
        batches.add_case(row, case)
        text = tokenizer.decode(row.ids, skip_special_tokens=False)
        assert text == TEMPLATE.render(case.messages(), tools=offer.tools, add_generation_prompt=False)
        assert len(row.ids) == len(row.weights)
    assert set(SPECIAL) <= set(tokenizer.get_vocab())
