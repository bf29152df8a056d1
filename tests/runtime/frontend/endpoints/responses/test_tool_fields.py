"""Fields of /v1/responses about tools, structured output and reasoning that are refused."""

from typing import Any

import openai
import pytest

from kvasir.frontend.endpoints.tool_use import MAX_TOOLS
from runtime.frontend.endpoints.responses.test_tools import WEATHER, create
from runtime.frontend.harness import Frontend
from runtime.frontend.parsed_models import UNKNOWN_FORMATS, running_model


async def refused(frontend: Frontend, input: Any = "Hi", **body: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as error:
        await create(frontend, input, **body)
    assert frontend.engine.seen.requests == []
    return error.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}, {"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "a b"}]}, "tools[1].name"),
        ({"tools": [WEATHER, *[{"type": "web_search"}] * MAX_TOOLS]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "time"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "time"}]},
            },
            "tool_choice.tools[0].name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
            "input[0].output[0].type",
        ),
    ],
)
async def test_a_wrong_field_is_refused_by_its_name(model: Frontend, body: dict[str, Any], param: str) -> None:
    error = await refused(model, **body)
    assert error.param == param
    assert param in error.message


async def test_tools_of_a_server_are_left_out_next_to_functions(model: Frontend) -> None:
    others = [{"type": "web_search"}, {"type": "namespace", "name": "agents", "tools": []}]
    answer = await create(model, "Hi", tools=[others[0], WEATHER, others[1]])
    assert [tool.type for tool in answer.tools] == ["function"]


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_tools_need_a_model_with_a_tool_format(choice: Any) -> None:
    async with running_model(**UNKNOWN_FORMATS) as frontend:
        error = await refused(frontend, tools=[WEATHER], tool_choice=choice)
        assert error.param == "tools"
        assert "--tool-call-parser" in error.message
        await create(frontend, tools=[WEATHER], tool_choice="none")


async def test_an_unknown_choice_is_answered_with_the_known_ones(model: Frontend) -> None:
    for choice in ("always", 3):
        error = await refused(model, tools=[WEATHER], tool_choice=choice)
        assert "expected one of 'none', 'auto' or 'required' or an object, got" in error.message
