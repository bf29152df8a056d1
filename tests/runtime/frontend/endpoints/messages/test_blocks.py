"""The blocks of a history on /v1/messages, as the chat template gets them."""

from typing import Any

import pytest

from runtime.frontend.endpoints.messages.test_tools import create, refused
from runtime.frontend.harness import Frontend, script_for
from runtime.frontend.parsed_models import (
    OSLO,
    ROME,
    SCHEMA,
    TEXT,
    THOUGHTS,
    rendered,
    thoughts,
)

WEATHER: dict[str, Any] = {"name": "weather", "input_schema": SCHEMA}
USER: dict[str, Any] = {"role": "user", "content": "Hi"}
USE: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "t1"}


def answered(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """A history with a call, and the blocks of the user's message after it."""
    return [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": list(blocks)}]


async def test_an_answer_with_calls_can_be_sent_back_with_results(model: Frontend) -> None:
    first = await create(model, tools=[WEATHER])
    uses = [block for block in first.content if block.type == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": uses[0].id, "content": "3 degrees"},
        {"type": "tool_result", "tool_use_id": uses[1].id, "content": [{"type": "text", "text": "12"}]},
    ]
    history = [
        USER,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "And now?"}]},
    ]
    model.engine.script = script_for(TEXT)
    second = await create(model, history, tools=[WEATHER])
    assert second.stop_reason == "end_turn"
    assert rendered(model).partition("\n")[2] == (
        f"<user>Hi<assistant>({THOUGHTS}){TEXT}[{uses[0].id} weather {OSLO}][{uses[1].id} weather {ROME}]"
        "<tool weather>3 degrees<tool weather>12<user>And now?<assistant>"
    )


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({}, ""),
        ({"content": ""}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": "no such city", "is_error": True}, "Error: no such city"),
        ({"content": "3", "is_error": False, "cache_control": {"type": "ephemeral"}}, "3"),
    ],
)
async def test_a_result_is_a_message_of_the_tool(model: Frontend, result: dict[str, Any], text: str) -> None:
    await create(model, answered({**RESULT, **result}))
    assert rendered(model) == f"<user>Hi<assistant>[t1 weather {OSLO}]<tool weather>{text}<assistant>"


async def test_hidden_thinking_is_left_out(model: Frontend) -> None:
    content = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Yes."}]
    await create(model, [USER, {"role": "assistant", "content": content}, USER])
    assert rendered(model) == "<user>Hi<assistant>Yes.<user>Hi<assistant>"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (answered({"type": "tool_result"}), "messages[2].content[0].tool_use_id"),
        (answered({**RESULT, "content": [{"type": "image"}]}), "messages[2].content[0].content[0].type"),
        (answered({**RESULT, "content": [{"type": "text"}]}), "messages[2].content[0].content[0].text"),
        (answered(USE), "messages[2].content[0].type: 'tool_use' belongs to a message of the assistant"),
        (answered({"type": "thinking", "thinking": "x"}), "messages[2].content[0].type"),
        (answered({"type": "document"}), "messages[2].content[0].type"),
        ([USER, {"role": "assistant", "content": [RESULT]}], "messages[1].content[0].type"),
        ([USER, {"role": "assistant", "content": [{**USE, "id": None}]}], "messages[1].content[0].id"),
        ([USER, {"role": "assistant", "content": [{**USE, "input": None}]}], "messages[1].content[0].input"),
        ([USER, {"role": "assistant", "content": [USE]}], "send its tool_result after it"),
        ([USER, {"role": "assistant", "content": [{"type": "server_tool_use"}]}], "messages[1].content[0].type"),
    ],
)
async def test_a_wrong_block_is_refused_by_its_place(model: Frontend, messages: Any, words: str) -> None:
    assert words in await refused(model, messages=messages)


async def test_an_output_format_does_not_continue_a_message(model: Frontend) -> None:
    wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = await refused(model, messages=[USER, {"role": "assistant", "content": "{"}], output_config=wanted)
    assert "cannot continue" in message


async def test_arguments_that_take_long_to_parse_are_refused(model: Frontend) -> None:
    def used(count: int) -> list[Any]:
        use = {**USE, "input": {"list": [0] * count}}
        return [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [RESULT]}]

    assert "more than 50000 values" in await refused(model, messages=used(50_000))


async def test_a_continued_message_does_not_begin_with_thinking(model: Frontend) -> None:
    model.engine.script = script_for(f"{thoughts()} it is.")
    answer = await create(model, [USER, {"role": "assistant", "content": "The mark is "}])
    assert [block.type for block in answer.content] == ["text"]
    assert rendered(model) == "<user>Hi<assistant>The mark is "
