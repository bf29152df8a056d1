import json
from typing import Any

import openai
import pytest
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from pydantic import BaseModel

from kvasir.request.constraint import GrammarKind
from runtime.frontend.harness import MODEL, Frontend, script_for
from runtime.frontend.parsed_models import (
    EVERYTHING,
    OSLO,
    ROME,
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

WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "description": "Now.", "parameters": SCHEMA}
TIME: dict[str, Any] = {"type": "function", "name": "time"}


async def create(frontend: Frontend, input: Any = "Hi", **body: Any) -> Response:
    async with frontend.openai() as client:
        answer = await client.responses.create(model=MODEL, input=input, **body)
    assert isinstance(answer, Response)
    Response.model_validate(answer.model_dump())
    return answer


def calls_of(answer: Response) -> list[tuple[str, str]]:
    return [(item.name, item.arguments) for item in answer.output if isinstance(item, ResponseFunctionToolCall)]


async def test_reasoning_text_and_calls_are_items_in_order(model: Frontend) -> None:
    answer = await create(model, tools=[WEATHER])
    reasoning, message, first, second = answer.output
    assert isinstance(reasoning, ResponseReasoningItem)
    assert reasoning.content is not None
    assert (reasoning.id[:3], reasoning.summary, reasoning.status) == ("rs_", [], "completed")
    assert [part.text for part in reasoning.content] == [THOUGHTS]
    assert isinstance(message, ResponseOutputMessage)
    assert isinstance(message.content[0], ResponseOutputText)
    assert (message.id[:4], message.content[0].text, answer.output_text) == ("msg_", TEXT, TEXT)
    assert isinstance(first, ResponseFunctionToolCall)
    assert isinstance(second, ResponseFunctionToolCall)
    assert first.id is not None
    assert (first.id[:3], first.call_id[:5], first.status) == ("fc_", "call_", "completed")
    assert calls_of(answer) == [("weather", OSLO), ("weather", ROME)]
    assert len({item.id for item in answer.output} | {first.call_id, second.call_id}) == 6
    assert answer.status == "completed"


async def test_usage_counts_the_tokens_of_the_reasoning(model: Frontend) -> None:
    usage = (await create(model, tools=[WEATHER])).usage
    assert usage is not None
    assert token_count(THOUGHTS) <= usage.output_tokens_details.reasoning_tokens <= token_count(thoughts()) + 1
    assert usage.output_tokens == token_count(EVERYTHING) + 1


async def test_tools_reach_the_template_and_come_back(model: Frontend) -> None:
    answer = await create(model, tools=[WEATHER, {**TIME, "strict": False}], parallel_tool_calls=False)
    weather, time = offered(model)
    assert weather == {"name": "weather", "description": "Now.", "parameters": SCHEMA}
    assert time["name"] == "time"
    assert [(tool.name, tool.strict) for tool in answer.tools if tool.type == "function"] == [
        ("weather", True),  # as in OpenAI's API, where chats have the opposite default
        ("time", False),
    ]
    assert (answer.tool_choice, answer.parallel_tool_calls) == ("auto", False)


async def test_one_call_is_left_of_several_that_are_not_wanted(model: Frontend) -> None:
    answer = await create(model, tools=[WEATHER], parallel_tool_calls=False)
    assert calls_of(answer) == [("weather", OSLO)]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
)
async def test_a_call_that_is_required_is_constrained(model: Frontend, choice: Any) -> None:
    model.engine.script = paced(call(OSLO))
    answer = await create(model, tools=[WEATHER, TIME], tool_choice=choice)
    assert calls_of(answer) == [("weather", OSLO)]
    grammar = grammar_of(model)
    assert "weather" in grammar.text
    assert ("time" in grammar.text) == (choice == "required")
    assert answer.model_dump(exclude_none=True)["tool_choice"] == choice
    assert '"time"' in rendered(model)  # the template gets all tools, so that the prefix stays the same


async def test_tools_without_calls_give_a_message(model: Frontend) -> None:
    model.engine.script = script_for(TEXT)
    answer = await create(model, tools=[WEATHER])
    assert [item.type for item in answer.output] == ["message"]
    assert answer.output_text == TEXT


@pytest.mark.parametrize("cut", [1, 4])
async def test_a_call_that_is_cut_off_is_incomplete(model: Frontend, cut: int) -> None:
    text = call(OSLO)
    model.engine.script = paced(text)
    answer = await create(
        model, tools=[WEATHER], max_output_tokens=token_count(text.partition("Oslo")[0]) - 1 + cut
    )
    assert answer.status == "incomplete"
    (item,) = answer.output
    assert isinstance(item, ResponseFunctionToolCall)
    assert item.status == "incomplete"
    assert OSLO.startswith(item.arguments)
    assert item.arguments != OSLO or cut == 4


async def test_reasoning_that_is_cut_off_is_incomplete(model: Frontend) -> None:
    answer = await create(model, max_output_tokens=token_count(thoughts()[:-10]))
    (item,) = answer.output
    assert isinstance(item, ResponseReasoningItem)
    assert (answer.status, item.status) == ("incomplete", "incomplete")
    assert answer.output_text == ""


async def test_effort_is_a_variable_of_the_template(model: Frontend) -> None:
    answer = await create(model, reasoning={"effort": "high", "summary": "auto"})
    assert "effort high\nthinking True\n" in rendered(model)
    assert answer.reasoning is not None
    assert (answer.reasoning.effort, answer.reasoning.summary) == ("high", "auto")
    await create(model, reasoning={"effort": "none"})
    assert "effort none\nthinking False\n" in rendered(model)


async def test_a_history_of_calls_reaches_the_template(model: Frontend) -> None:
    first = await create(model, "Compare them.", tools=[WEATHER])
    calls = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    text = [{"type": "input_text", "text": "12"}, {"type": "input_text", "text": "degrees"}]
    history = [
        {"role": "user", "content": "Compare them."},
        *[item.model_dump() for item in first.output],
        {"type": "function_call_output", "call_id": calls[0].call_id, "output": "3 degrees"},
        {"type": "function_call_output", "call_id": calls[1].call_id, "output": text},
        {"role": "user", "content": "And now?"},
    ]
    model.engine.script = script_for(TEXT)
    assert (await create(model, history, tools=[WEATHER])).output_text == TEXT
    prompt = rendered(model).partition("\n")[2]
    assert prompt == (
        f"<user>Compare them.<assistant>({THOUGHTS}){TEXT}[{calls[0].call_id} weather {OSLO}]"
        f"[{calls[1].call_id} weather {ROME}]<tool weather>3 degrees<tool weather>12\ndegrees"
        "<user>And now?<assistant>"
    )


async def test_a_summary_stands_for_reasoning_without_content(model: Frontend) -> None:
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    called = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "noon"}
    await create(model, [{"role": "user", "content": "When?"}, summary, called, output])
    assert rendered(model) == "<user>When?<assistant>(Hm.)[c time {}]<tool time>noon<assistant>"


class City(BaseModel):
    city: str


async def test_the_client_parses_structured_output() -> None:
    async with running_model(**UNKNOWN_FORMATS) as frontend:
        frontend.engine.script = script_for(OSLO)
        async with frontend.openai() as client:
            answer = await client.responses.parse(model=MODEL, input="Where?", text_format=City)
        assert answer.output_parsed == City(city="Oslo")
        grammar = grammar_of(frontend)
        assert grammar.kind is GrammarKind.JSON_SCHEMA
        assert json.loads(grammar.text)["required"] == ["city"]
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"
    assert (answer.text.format.name, answer.text.format.strict) == ("City", True)


async def test_a_schema_holds_after_the_reasoning(model: Frontend) -> None:
    model.engine.script = paced(thoughts() + OSLO)
    async with model.openai() as client:
        answer = await client.responses.parse(model=MODEL, input="Where?", text_format=City)
    assert answer.output_parsed == City(city="Oslo")
    grammar = grammar_of(model)
    assert "</think>" in grammar.text
    assert '"required"' in grammar.text


async def test_a_json_object_is_enforced() -> None:
    async with running_model(**UNKNOWN_FORMATS) as frontend:
        answer = await create(frontend, text={"format": {"type": "json_object"}})
        assert json.loads(grammar_of(frontend).text) == {"type": "object"}
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_object"


async def test_arguments_are_parsed_by_the_clients_tools(model: Frontend) -> None:
    model.engine.script = paced(call(OSLO, "City"))
    async with model.openai() as client:
        answer = await client.responses.parse(
            model=MODEL,
            input="Where?",
            tools=[openai.pydantic_function_tool(City)["function"] | {"type": "function"}],  # type: ignore[list-item]
        )
    (item,) = answer.output
    assert item.type == "function_call"
    assert json.loads(item.arguments) == {"city": "Oslo"}


async def test_log_probabilities_are_those_of_the_message(model: Frontend) -> None:
    answer = await create(model, tools=[WEATHER], include=["message.output_text.logprobs"])
    message = next(item for item in answer.output if isinstance(item, ResponseOutputMessage))
    part = message.content[0]
    assert isinstance(part, ResponseOutputText)
    assert part.logprobs is not None
    assert TEXT in "".join(entry.token for entry in part.logprobs)
    assert "Oslo" not in "".join(entry.token for entry in part.logprobs)


async def test_text_that_looks_like_a_call_stays_text_without_tools(model: Frontend) -> None:
    model.engine.script = paced(call(OSLO))
    assert (await create(model)).output_text == call(OSLO)


async def test_ids_of_calls_are_those_that_mistrals_templates_take() -> None:
    async with running_model(tool_call_parser="mistral") as frontend:
        frontend.engine.script = paced(f'[TOOL_CALLS][{{"name": "weather", "arguments": {OSLO}}}]')
        (item,) = (await create(frontend, tools=[WEATHER])).output
    assert isinstance(item, ResponseFunctionToolCall)
    assert len(item.call_id) == 9
    assert item.call_id.isalnum()


async def test_forbidden_tools_can_be_hidden_from_the_template() -> None:
    async with running_model(exclude_tools_when_tool_choice_none=True) as frontend:
        await create(frontend, tools=[WEATHER], tool_choice="none")
        assert rendered(frontend) == "<user>Hi<assistant>"
        await create(frontend, tools=[WEATHER])
        assert offered(frontend)[0]["name"] == "weather"


@pytest.mark.parametrize(
    ("fields", "is_enforced"), [({}, True), ({"strict": True}, True), ({"strict": False}, False)]
)
async def test_arguments_match_the_schema_by_default(
    model: Frontend, fields: dict[str, Any], is_enforced: bool
) -> None:
    await create(model, tools=[{**WEATHER, **fields}])
    constraint = model.engine.seen.requests[0].constraint
    text = constraint.grammar.text if constraint is not None and constraint.grammar is not None else ""
    assert ('"required"' in text) == is_enforced


async def test_reasoning_between_a_text_and_a_call_begins_a_message(model: Frontend) -> None:
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]}
    content = [{"type": "reasoning_text", "text": "Hm."}]
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
    called = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "noon"}
    await create(model, [{"role": "user", "content": "When?"}, text, thought, called, output])
    assert rendered(model) == "<user>When?<assistant>Well.<assistant>(Hm.)[c time {}]<tool time>noon<assistant>"
