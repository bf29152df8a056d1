import json
from itertools import groupby
from typing import Any

import pytest
from anthropic.types import MessageParam, RawMessageStreamEvent, ThinkingBlock, ToolUseBlock

from runtime.frontend.harness import MODEL, Frontend
from runtime.frontend.parsed_models import (
    EVERYTHING,
    LONG,
    OSLO,
    ROME,
    SCHEMA,
    TEXT,
    THOUGHTS,
    call,
    check_types,
    paced,
    thoughts,
    token_count,
)
from runtime.frontend.streams import named_events

QUESTION: list[MessageParam] = [{"role": "user", "content": "Hi"}]
WEATHER: dict[str, Any] = {"name": "weather", "input_schema": SCHEMA}
START, STOP = "content_block_start", "content_block_stop"


async def events_of(frontend: Frontend, **body: Any) -> list[Any]:
    """The events; checks that each is valid for the client's class."""
    async with frontend.http() as client:
        response = await client.post(
            "/v1/messages", json={"messages": QUESTION, "max_tokens": 500, "stream": True, **body}
        )
    assert response.status_code == 200, response.text
    events = named_events(response.content)
    check_types([event for event in events if event["type"] != "ping"], RawMessageStreamEvent)
    return events


def sequence_of(events: list[Any]) -> list[str]:
    """The types of the events, and of their deltas, runs of one kind as one."""
    types = (
        event["delta"]["type"] if event["type"] == "content_block_delta" else event["type"] for event in events
    )
    return [type for type, _ in groupby(types)]


def texts_of(events: list[Any]) -> list[str]:
    """The text of each block's deltas; checks that the blocks follow each other."""
    texts: list[str] = []
    open_index: int | None = None
    for event in events:
        if event["type"] == START:
            assert (open_index, event["index"]) == (None, len(texts))
            open_index = event["index"]
            texts.append("")
        elif event["type"] == STOP:
            assert event["index"] == open_index
            open_index = None
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_index
            delta = event["delta"]
            texts[-1] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
    assert open_index is None
    return texts


async def test_the_sequence_of_thinking_text_and_calls(model: Frontend) -> None:
    events = await events_of(model, tools=[WEATHER])
    assert sequence_of(events) == [
        "message_start",
        *[START, "ping", "thinking_delta", "signature_delta", STOP],
        *[START, "text_delta", STOP],
        *[START, "input_json_delta", STOP],
        *[START, "input_json_delta", STOP],
        "message_delta",
        "message_stop",
    ]
    assert texts_of(events) == [THOUGHTS, TEXT, OSLO, ROME]
    begun = [event["content_block"] for event in events if event["type"] == START]
    assert begun[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert begun[1] == {"type": "text", "text": "", "citations": None}
    assert [(block["type"], block["name"], block["input"]) for block in begun[2:]] == [
        ("tool_use", "weather", {})
    ] * 2
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == token_count(EVERYTHING) + 1
    assert events[-2]["usage"]["output_tokens_details"]["thinking_tokens"] >= token_count(THOUGHTS)


async def test_thinking_may_be_followed_by_a_call(model: Frontend) -> None:
    model.engine.script = paced(thoughts() + call(OSLO))
    events = await events_of(model, tools=[WEATHER])
    assert texts_of(events) == [THOUGHTS, OSLO]


async def test_input_comes_in_several_deltas(model: Frontend) -> None:
    model.engine.script = paced(call(LONG))
    events = await events_of(model, tools=[WEATHER])
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == LONG
    assert len([delta for delta in deltas if delta["type"] == "input_json_delta"]) > 4


async def test_the_client_accumulates_all_blocks(model: Frontend) -> None:
    async with (
        model.anthropic() as client,
        client.messages.stream(model=MODEL, messages=QUESTION, max_tokens=500, tools=[WEATHER]) as stream,  # type: ignore[list-item]
    ):
        seen = {event.type async for event in stream}
        final = await stream.get_final_message()
    assert {"thinking", "signature", "text", "input_json"} <= seen
    thinking, _, first, second = final.content
    assert isinstance(thinking, ThinkingBlock)
    assert (thinking.thinking, thinking.signature) == (THOUGHTS, "kvasir")
    assert isinstance(first, ToolUseBlock)
    assert isinstance(second, ToolUseBlock)
    assert (first.input, second.input) == (json.loads(OSLO), json.loads(ROME))
    assert final.stop_reason == "tool_use"


@pytest.mark.parametrize("text", [call(OSLO)[:-28], call(OSLO)[:-14], f"{TEXT}\n{call(OSLO)[:-18]}"])
async def test_a_stream_that_ends_within_a_call_is_complete(model: Frontend, text: str) -> None:
    model.engine.script = paced(text + "x" * 40)
    events = await events_of(model, tools=[WEATHER], max_tokens=token_count(text))
    assert OSLO.startswith(texts_of(events)[-1])
    assert sequence_of(events)[-2:] == ["message_delta", "message_stop"]
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_hidden_thinking_has_a_signature_only(model: Frontend) -> None:
    events = await events_of(model, tools=[WEATHER], thinking={"type": "adaptive", "display": "omitted"})
    assert sequence_of(events)[1:5] == [START, "ping", "signature_delta", STOP]
    assert texts_of(events) == ["", TEXT, OSLO, ROME]


async def test_a_failure_within_a_call_is_the_last_event(model: Frontend) -> None:
    model.engine.script.error = "the step failed"
    async with model.http() as client:
        body = {"messages": QUESTION, "max_tokens": 500, "stream": True, "tools": [WEATHER]}
        response = await client.post("/v1/messages", json=body)
    last = named_events(response.content)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
