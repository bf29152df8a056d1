import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from runtime.frontend.harness import MODEL
from runtime.frontend.parsed_models import LONG, call, running_model
from runtime.frontend.talking import tokens_of
from runtime.frontend.tool_turns import ANSWER, CITIES, FORMATS, FUNCTION, looping_model

DESCRIPTION = "Get the weather in a city."
PARAMETERS: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Its name"}},
    "required": ["city"],
    "additionalProperties": False,
}
BASH: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "timeout": {"type": "number", "maximum": 600000}},
    "required": ["command"],
}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


async def events_of(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("POST", path, json={"model": MODEL, "stream": True, **body}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def next_message(client: httpx.AsyncClient, messages: list[Any]) -> tuple[list[dict[str, Any]], str]:
    """POST /v1/messages?beta=true as Claude Code does. Return the blocks and the reason of the end."""
    body = {
        "max_tokens": 1000,
        "temperature": 1,
        "system": [{"type": "text", "text": "You are an agent.", **EPHEMERAL}, {"type": "text", "text": "cwd: /"}],
        "messages": messages,
        "tools": [
            {"name": "Bash", "description": "Run a command.", "input_schema": BASH},
            {"name": FUNCTION, "description": DESCRIPTION, "input_schema": PARAMETERS, **EPHEMERAL},
        ],
        "metadata": {"user_id": "user_1_account__session_2"},
    }
    blocks: list[dict[str, Any]] = []
    reason = ""
    async for event in events_of(client, "/v1/messages?beta=true", body):
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append({**block, "partial": ""})
            case {"type": "content_block_delta", "delta": delta}:
                blocks[-1]["partial"] += delta.get("text") or delta.get("partial_json") or ""
            case {"type": "message_delta", "delta": delta}:
                reason = delta["stop_reason"]
    for block in blocks:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial)
        elif block["type"] == "text":
            block["text"] = partial
    return [block for block in blocks if block["type"] != "thinking"], reason


@pytest.mark.parametrize("name", FORMATS)
async def test_agent_of_messages_loops_to_the_answer(name: str) -> None:
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "The weather?", **EPHEMERAL}]}]
    asked, reasons = [], []
    async with looping_model(name) as frontend, frontend.http(**headers) as client:
        for _ in range(4):
            blocks, reason = await next_message(client, messages)
            reasons.append(reason)
            calls = [block for block in blocks if block["type"] == "tool_use"]
            asked += [(block["name"], block["input"]) for block in calls]
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "is_error": False, **EPHEMERAL,
                 "content": [{"type": "text", "text": "sunny"}]}
                for block in calls
            ]  # fmt: skip
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    assert asked == [(FUNCTION, {"city": city}) for city in CITIES]
    assert reasons == ["tool_use", "tool_use", "tool_use", "end_turn"]
    assert blocks == [{"type": "text", "text": ANSWER, "citations": None}]


async def next_items(client: httpx.AsyncClient, items: list[Any]) -> list[dict[str, Any]]:
    """POST /v1/responses as Codex does. Return the items of the output."""
    body = {
        "instructions": "You are an agent.",
        "input": items,
        "tools": [
            {"type": "function", "name": "shell", "description": "Run it.", "strict": False, "parameters": BASH},
            {"type": "function", "name": FUNCTION, "strict": False, "parameters": PARAMETERS},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0195-session",
    }
    done = [event async for event in events_of(client, "/v1/responses", body)]
    assert done[-1]["type"] == "response.completed"
    finished = [event["item"] for event in done if event["type"] == "response.output_item.done"]
    assert finished == done[-1]["response"]["output"]
    return finished


@pytest.mark.parametrize("name", FORMATS)
async def test_agent_of_responses_loops_to_the_answer(name: str) -> None:
    question = {"type": "input_text", "text": "The weather?"}
    items: list[Any] = [{"type": "message", "role": "user", "content": [question]}]
    asked = []
    async with looping_model(name) as frontend, frontend.http() as client:
        for _ in range(4):
            output = await next_items(client, items)
            items += output
            for item in output:
                if item["type"] == "function_call":
                    asked.append((item["name"], json.loads(item["arguments"])))
                    result = {"call_id": item["call_id"], "output": "sunny"}
                    items.append({"type": "function_call_output", **result})
    assert asked == [(FUNCTION, {"city": city}) for city in CITIES]
    assert output[-1]["content"][0]["text"] == ANSWER


async def next_chat(client: httpx.AsyncClient, messages: list[Any]) -> tuple[dict[str, Any], str]:
    """POST /v1/chat/completions as agents on OpenAI's chats do. Return the message and the finish reason."""
    functions = [
        {"name": "bash", "description": "Run it.", "parameters": BASH},
        {"name": FUNCTION, "description": DESCRIPTION, "parameters": PARAMETERS},
    ]
    body = {
        "messages": messages,
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": "auto",
        "max_tokens": 1000,
        "stream_options": {"include_usage": True},
    }
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    reasons = []
    async for event in events_of(client, "/v1/chat/completions", body):
        for choice in event["choices"]:
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            message["content"] += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls", ()):
                if "id" in piece:
                    message["tool_calls"].append({key: piece[key] for key in ("id", "type", "function")})
                else:
                    message["tool_calls"][piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    (reason,) = reasons
    return message if message["tool_calls"] else {"role": "assistant", "content": message["content"]}, reason


@pytest.mark.parametrize("name", FORMATS)
async def test_agent_of_chats_loops_to_the_answer(name: str) -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "You are an agent."}]}
    messages: list[Any] = [system, {"role": "user", "content": [{"type": "text", "text": "The weather?"}]}]
    asked, reasons = [], []
    async with looping_model(name) as frontend, frontend.http() as client:
        for _ in range(4):
            message, reason = await next_chat(client, messages)
            messages.append(message)
            reasons.append(reason)
            for each in message.get("tool_calls", ()):
                asked.append((each["function"]["name"], json.loads(each["function"]["arguments"])))
                messages.append({"role": "tool", "tool_call_id": each["id"], "content": "sunny"})
    assert asked == [(FUNCTION, {"city": city}) for city in CITIES]
    assert reasons == ["tool_calls", "tool_calls", "tool_calls", "stop"]
    assert message["content"] == ANSWER


# ------------------------------------------------------------------------------------------------ how answers end

TORN = call(f"{LONG[:-1]}, 'days': 3 * 4}}", FUNCTION)
CASES = {
    "whole": (call('{"city": "Oslo"}', FUNCTION), 1, "tool_calls"),
    "whole without its closing mark": (call('{"city": "Oslo"}', FUNCTION).partition("\n</")[0], 1, "tool_calls"),
    "whole with a lone surrogate": (call(r'{"city": "\ud83d"}', FUNCTION), 1, "tool_calls"),
    "whole with a huge number": (call('{"city": 1e999}', FUNCTION), 1, "tool_calls"),
    "repaired": (call("{'city': None,}", FUNCTION), 1, "tool_calls"),
    "not ended": (call('{"city": "Oslo"}', FUNCTION).partition("slo")[0], 0, "stop"),
    "broken": (call('{"city": 3 * 4}', FUNCTION), 0, "stop"),
    "not offered": (call("{}", "other"), 0, "stop"),
    "broken after its beginning was sent": (TORN, 1, "stop"),
}


async def answer_of(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


def without_id(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in ("id", "call_id")}


@pytest.mark.parametrize("case", CASES)
async def test_ends_agree_on_all_endpoints(case: str) -> None:
    text, count, reason = CASES[case]
    async with running_model(reasoning_parser="none") as frontend, frontend.http() as client:
        frontend.engine.script.answer = tokens_of(text)
        ask: dict[str, Any] = {"messages": [{"role": "user", "content": "The weather?"}]}
        message, streamed_reason = await next_chat(client, ask["messages"])
        blocks, stop_reason = await next_message(client, ask["messages"])
        items = await next_items(client, ask["messages"])
        offered = {"name": FUNCTION, "parameters": PARAMETERS}
        tools: list[Any] = [{"type": "function", "function": offered}]
        (chat,) = (await answer_of(client, "/v1/chat/completions", {**ask, "tools": tools}))["choices"]
        tools = [{"name": FUNCTION, "input_schema": PARAMETERS}]
        whole = await answer_of(client, "/v1/messages", {**ask, "max_tokens": 1000, "tools": tools})
        tools = [{"type": "function", **offered}]
        response = await answer_of(client, "/v1/responses", {"input": ask["messages"], "tools": tools})
    functions = [each["function"] for each in message.get("tool_calls", ())]
    calls = [(each["name"], json.loads(each["arguments"])) for each in functions]
    assert len(calls) == count
    assert [(each["name"], each["input"]) for each in blocks if each["type"] == "tool_use"] == calls
    called = [each for each in items if each["type"] == "function_call"]
    assert [(each["name"], json.loads(each["arguments"])) for each in called] == calls
    assert streamed_reason == reason
    assert stop_reason == {"tool_calls": "tool_use", "stop": "end_turn"}[reason]
    assert (chat["finish_reason"], whole["stop_reason"], response["status"]) == (reason, stop_reason, "completed")
    assert [each["function"] for each in chat["message"].get("tool_calls", ())] == functions
    assert (chat["message"]["content"] or "") == message["content"]
    assert [without_id(block) for block in whole["content"]] == [without_id(block) for block in blocks]
    assert [without_id(item) for item in response["output"]] == [without_id(item) for item in items]
    if not count:
        assert message["content"] == blocks[0]["text"] == items[0]["content"][0]["text"] == text
