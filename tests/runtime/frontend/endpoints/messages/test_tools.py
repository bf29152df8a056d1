import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolParam, ToolUseBlock
from pydantic import BaseModel

from kvasir.request.constraint import GrammarKind
from runtime.frontend.harness import MODEL, Frontend, script_for
from runtime.frontend.parsed_models import (
    EVERYTHING,
    OSLO,
    SCHEMA,
    TEXT,
    THOUGHTS,
    UNKNOWN_FORMATS,
    call,
    grammar_of,
    offered,
    paced,
    rendered,
    running_model,
    thoughts,
    token_count,
)

QUESTION = [{"role": "user", "content": "Hi"}]
WEATHER: dict[str, Any] = {"name": "weather", "description": "Now.", "input_schema": SCHEMA}
TIME: dict[str, Any] = {"name": "time", "input_schema": {"type": "object"}, "type": "custom"}


async def create(frontend: Frontend, messages: Any = QUESTION, max_tokens: int = 500, **body: Any) -> Message:
    async with frontend.anthropic() as client:
        answer = await client.messages.create(model=MODEL, messages=messages, max_tokens=max_tokens, **body)
    assert isinstance(answer, Message)
    Message.model_validate(answer.model_dump())
    return answer


async def refused(frontend: Frontend, path: str = "/v1/messages", **body: Any) -> str:
    async with frontend.http() as client:
        response = await client.post(path, json={"messages": QUESTION, "max_tokens": 50, **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert frontend.engine.seen.requests == []
    message: str = response.json()["error"]["message"]
    return message


async def test_thinking_text_and_calls_are_blocks_in_order(model: Frontend) -> None:
    answer = await create(model, tools=[WEATHER])
    thinking, text, first, second = answer.content
    assert isinstance(thinking, ThinkingBlock)
    assert (thinking.thinking, thinking.signature) == (THOUGHTS, "kvasir")
    assert isinstance(text, TextBlock)
    assert text.text == TEXT
    assert isinstance(first, ToolUseBlock)
    assert isinstance(second, ToolUseBlock)
    assert (first.name, first.input, second.input) == ("weather", {"city": "Oslo"}, {"city": "Rome"})
    assert (first.id[:6], first.id != second.id) == ("toolu_", True)
    assert (answer.stop_reason, answer.stop_sequence) == ("tool_use", None)


async def test_usage_counts_the_tokens_of_the_thinking(model: Frontend) -> None:
    usage = (await create(model, tools=[WEATHER])).usage
    assert usage.output_tokens_details is not None
    assert token_count(THOUGHTS) <= usage.output_tokens_details.thinking_tokens <= token_count(thoughts()) + 1
    assert usage.output_tokens == token_count(EVERYTHING) + 1
    model.engine.script = script_for(TEXT)
    assert (await create(model)).usage.output_tokens_details is None


async def test_tools_reach_the_template_and_the_count(model: Frontend) -> None:
    answer = await create(model, tools=[WEATHER], system="Be brief.")
    assert offered(model) == [{"name": "weather", "description": "Now.", "parameters": SCHEMA}]
    assert rendered(model).endswith("\n<system>Be brief.<user>Hi<assistant>")
    tools: list[ToolParam] = [{"name": "weather", "description": "Now.", "input_schema": SCHEMA}]
    async with model.anthropic() as client:
        count = await client.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], tools=tools, system="Be brief."
        )
    assert count.input_tokens == answer.usage.input_tokens


async def test_an_answer_without_calls_ends_the_turn(model: Frontend) -> None:
    model.engine.script = script_for(TEXT)
    answer = await create(model, tools=[WEATHER])
    assert [block.type for block in answer.content] == ["text"]
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
async def test_a_call_that_is_required_is_constrained(model: Frontend, choice: Any) -> None:
    model.engine.script = paced(call(OSLO))
    answer = await create(model, tools=[WEATHER, TIME], tool_choice=choice)
    assert [block.type for block in answer.content] == ["tool_use"]
    grammar = grammar_of(model)
    assert "weather" in grammar.text
    assert ("time" in grammar.text) == (choice["type"] == "any")


async def test_one_call_is_left_of_several_that_are_not_wanted(model: Frontend) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    answer = await create(model, tools=[WEATHER], tool_choice=choice)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]


async def test_a_call_that_is_cut_off_has_the_input_so_far(model: Frontend) -> None:
    text = call('{"city": "Oslo", "days": 3}')
    model.engine.script = paced(text)
    answer = await create(model, tools=[WEATHER], max_tokens=token_count(text.partition('"days')[0]) + 1)
    (block,) = answer.content
    assert isinstance(block, ToolUseBlock)
    assert block.input == {"city": "Oslo"}
    assert answer.stop_reason == "max_tokens"


async def test_a_call_wins_over_a_stop_sequence(model: Frontend) -> None:
    model.engine.script = script_for(f"{call(OSLO)} and so on")
    answer = await create(model, tools=[WEATHER], stop_sequences=[" and"])
    assert (answer.stop_reason, answer.stop_sequence) == ("tool_use", None)


async def test_the_budget_of_the_thinking_goes_to_the_engine(model: Frontend) -> None:
    await create(model, thinking={"type": "enabled", "budget_tokens": 1024})
    constraint = model.engine.seen.requests[0].constraint
    assert constraint is not None
    assert constraint.thinking_budget == 1024
    assert "thinking True" in rendered(model)
    await create(model, thinking={"type": "disabled"})
    assert "thinking False" in rendered(model)
    await create(model, thinking={"type": "adaptive"}, output_config={"effort": "low"})
    assert rendered(model) == "effort low\n<user>Hi<assistant>"


async def test_thinking_may_be_left_out_of_its_block(model: Frontend) -> None:
    answer = await create(model, thinking={"type": "adaptive", "display": "omitted"}, tools=[WEATHER])
    assert isinstance(block := answer.content[0], ThinkingBlock)
    assert (block.thinking, block.signature) == ("", "kvasir")
    assert isinstance(answer.content[1], TextBlock)


class City(BaseModel):
    city: str


async def test_the_client_parses_structured_output() -> None:
    async with running_model(**UNKNOWN_FORMATS) as frontend:
        frontend.engine.script = script_for(OSLO)
        async with frontend.anthropic() as client:
            answer = await client.messages.parse(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=50, output_format=City
            )
        assert answer.parsed_output == City(city="Oslo")
        grammar = grammar_of(frontend)
        assert grammar.kind is GrammarKind.JSON_SCHEMA
        assert json.loads(grammar.text)["required"] == ["city"]


@pytest.mark.parametrize("older", [False, True])
async def test_an_output_format_is_enforced_under_both_names(older: bool) -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    body = {"output_format": wanted} if older else {"output_config": {"format": wanted}}
    async with running_model(**UNKNOWN_FORMATS) as frontend:
        await create(frontend, extra_body=body)
        assert json.loads(grammar_of(frontend).text) == SCHEMA


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0].type: 'web_search_20250305'",
        ),
        ({"tools": [WEATHER, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type: 'bash_20250124'"),
        ({"tools": [{"name": "weather"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "time"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
                "output_format": {"type": "json_schema", "schema": SCHEMA},
            },
            "output_format",
        ),
    ],
)
async def test_a_wrong_field_is_refused_by_its_name(
    model: Frontend, path: str, body: dict[str, Any], param: str
) -> None:
    assert param in await refused(model, path, **body)


@pytest.mark.parametrize("choice", ["auto", "any"])
async def test_tools_need_a_model_with_a_tool_format(choice: str) -> None:
    async with running_model(**UNKNOWN_FORMATS) as frontend:
        message = await refused(frontend, tools=[WEATHER], tool_choice={"type": choice})
        assert "tools" in message
        assert "--tool-call-parser" in message
        await create(frontend, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=50)


async def test_a_request_without_a_tool_format_is_the_clients_error() -> None:
    async with running_model(**UNKNOWN_FORMATS) as frontend:
        with pytest.raises(anthropic.BadRequestError, match="--tool-call-parser"):
            await create(frontend, tools=[WEATHER])


async def test_forbidden_tools_can_be_hidden_from_the_template() -> None:
    async with running_model(exclude_tools_when_tool_choice_none=True) as frontend:
        await create(frontend, tools=[WEATHER], tool_choice={"type": "none"})
        assert rendered(frontend) == "<user>Hi<assistant>"
        await create(frontend, tools=[WEATHER])
        assert offered(frontend)[0]["name"] == "weather"
