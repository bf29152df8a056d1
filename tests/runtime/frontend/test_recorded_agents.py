"""Requests that coding agents sent in the middle of their work, with their tools; long texts are cut.

Recorded from Codex CLI 0.171 (/v1/responses), Qwen Code 0.15 (/v1/chat/completions) and Claude Code 2.1
(/v1/messages).
"""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvasir.config.chat_settings import ChatConfig
from kvasir.config.settings import ModelConfig
from runtime.frontend.harness import MODEL, Frontend, running_frontend
from runtime.frontend.parsed_models import TEMPLATE, rendered
from runtime.frontend.talking import tokens_of

RECORDED = Path(__file__).parent / "recorded"
LONG = '{"max_position_embeddings": 65536}'
ANSWER = "There is one line."


def recorded(agent: str) -> tuple[str, dict[str, Any]]:
    request = json.loads((RECORDED / f"{agent}.json").read_text())
    return request["path"], {**request["body"], "model": MODEL}


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
async def agents_model() -> AsyncIterator[Frontend]:
    chat = ChatConfig(chat_template=TEMPLATE, tool_call_parser="hermes", reasoning_parser="none")
    model = ModelConfig(source="demo://", served_model_name=(MODEL,), hf_overrides=LONG)
    async with running_frontend(chat=chat, model=model) as frontend:
        yield frontend


async def events(frontend: Frontend, agent: str, *turns: str) -> list[list[dict[str, Any]]]:
    """Send the agent's request once for each output of the model. Return the events of each stream."""
    frontend.engine.script = replace(frontend.engine.script, turns=[tokens_of(text) for text in turns])
    path, body = recorded(agent)
    streams = []
    async with frontend.http() as client:
        for _ in turns:
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
            streams.append([json.loads(each) for each in data])
    return streams


async def test_codex_goes_on_with_its_tools(agents_model: Frontend) -> None:
    turns = call("exec_command", cmd="cat note.txt"), ANSWER
    called, answered = await events(agents_model, "codex", *turns)
    [item] = called[-1]["response"]["output"]
    assert (item["type"], item["name"]) == ("function_call", "exec_command")
    assert json.loads(item["arguments"]) == {"cmd": "cat note.txt"}
    assert [stream[-1]["type"] for stream in (called, answered)] == ["response.completed"] * 2
    assert answered[-1]["response"]["output"][0]["content"][0]["text"] == ANSWER
    assert "hello from a file" in rendered(agents_model)  # the result of an earlier call


async def test_qwen_code_goes_on_with_its_tools(agents_model: Frontend) -> None:
    turns = call("read_file", file_path="/work/project/note.txt"), ANSWER
    called, answered = await events(agents_model, "qwen_code", *turns)
    deltas = [choice["delta"] for event in called for choice in event["choices"]]
    calls = [each["function"] for delta in deltas for each in delta.get("tool_calls") or ()]
    assert calls[0]["name"] == "read_file"
    arguments = "".join(each.get("arguments") or "" for each in calls)
    assert json.loads(arguments) == {"file_path": "/work/project/note.txt"}
    reasons = [
        [choice["finish_reason"] for event in stream for choice in event["choices"] if choice["finish_reason"]]
        for stream in (called, answered)
    ]
    assert reasons == [["tool_calls"], ["stop"]]
    assert answered[-1]["usage"]["completion_tokens"] > 0
    assert "hello from a file" in rendered(agents_model)


async def test_claude_code_goes_on_with_its_tools(agents_model: Frontend) -> None:
    turns = call("Bash", command="wc -l note.txt"), ANSWER
    called, answered = await events(agents_model, "claude_code", *turns)
    [block] = [event["content_block"] for event in called if event["type"] == "content_block_start"]
    assert (block["type"], block["name"]) == ("tool_use", "Bash")
    pieces = [event["delta"].get("partial_json", "") for event in called if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == {"command": "wc -l note.txt"}
    reasons = [
        [event["delta"]["stop_reason"] for event in stream if event["type"] == "message_delta"]
        for stream in (called, answered)
    ]
    assert reasons == [["tool_use"], ["end_turn"]]
    assert "hello from a file" in rendered(agents_model)
