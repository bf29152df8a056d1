from itertools import groupby
from typing import Any

import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseStreamEvent

from runtime.frontend.harness import MODEL, Frontend
from runtime.frontend.parsed_models import (
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

WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": SCHEMA}
CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


def of_text(kind: str) -> list[str]:
    """The types of the events of an item with a text, runs of deltas as one."""
    return [
        "response.output_item.added",
        "response.content_part.added",
        f"response.{kind}.delta",
        f"response.{kind}.done",
        "response.content_part.done",
        "response.output_item.done",
    ]


async def events_of(frontend: Frontend, **body: Any) -> list[Any]:
    """The events; checks their numbers, and that each is valid for the client's class."""
    async with frontend.http() as client:
        response = await client.post("/v1/responses", json={"input": "Hi", "stream": True, **body})
    assert response.status_code == 200, response.text
    events = named_events(response.content)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    check_types(events, ResponseStreamEvent)
    return events


def types_of(events: list[Any]) -> list[str]:
    return [type for type, _ in groupby(event["type"] for event in events)]


def check_agreement(events: list[Any]) -> None:
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == list(range(len(done)))
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    for index, ended in enumerate(done):
        own = [event for event in events if event.get("output_index") == index]
        item = ended["item"]
        assert own[0]["type"] == "response.output_item.added"
        assert own[0]["item"]["status"] == "in_progress"
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]} == {own[0]["item"]["id"]}
        assert {event["content_index"] for event in own if "content_index" in event} <= {0}
        text = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        finals = [event for event in own if event["type"].endswith(("text.done", "arguments.done"))]
        assert [final.get("text", final.get("arguments")) for final in finals] == [text] == [whole]


async def test_the_sequence_of_reasoning_text_and_calls(model: Frontend) -> None:
    events = await events_of(model, tools=[WEATHER])
    assert types_of(events) == [
        "response.created",
        "response.in_progress",
        *of_text("reasoning_text"),
        *of_text("output_text"),
        *CALL,
        *CALL,
        "response.completed",
    ]
    check_agreement(events)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["arguments"] for item in output[2:]] == [OSLO, ROME]
    assert {item["status"] for item in output} == {"completed"}
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] >= token_count(THOUGHTS)


async def test_reasoning_may_be_followed_by_a_call(model: Frontend) -> None:
    model.engine.script = paced(thoughts() + call(OSLO))
    events = await events_of(model, tools=[WEATHER])
    assert types_of(events)[2:-1] == [*of_text("reasoning_text"), *CALL]
    check_agreement(events)


async def test_arguments_come_in_several_deltas(model: Frontend) -> None:
    model.engine.script = paced(call(LONG))
    events = await events_of(model, tools=[WEATHER])
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in deltas) == LONG
    assert len(deltas) > 4
    assert all(event["delta"] for event in deltas)


async def test_the_client_accumulates_all_items(model: Frontend) -> None:
    arguments: dict[int, str] = {}
    async with (
        model.openai() as client,
        client.responses.stream(model=MODEL, input="Hi", tools=[WEATHER]) as stream,  # type: ignore[list-item]
    ):
        async for event in stream:
            if event.type == "response.function_call_arguments.delta":
                arguments[event.output_index] = event.snapshot
        final = await stream.get_final_response()
    assert arguments == {2: OSLO, 3: ROME}
    calls = [item for item in final.output if isinstance(item, ResponseFunctionToolCall)]
    assert [item.arguments for item in calls] == [OSLO, ROME]
    assert final.output_text == TEXT


@pytest.mark.parametrize("text", [call(OSLO)[:-28], call(OSLO)[:-14], f"{TEXT}\n{call(OSLO)[:-18]}"])
async def test_a_stream_that_ends_within_a_call_is_incomplete(model: Frontend, text: str) -> None:
    model.engine.script = paced(text + "x" * 40)
    events = await events_of(model, tools=[WEATHER], max_output_tokens=token_count(text))
    check_agreement(events)
    *before, last = events[-1]["response"]["output"]
    assert types_of(events)[-5:] == [*CALL, "response.incomplete"]
    assert (last["type"], last["status"]) == ("function_call", "incomplete")
    assert OSLO.startswith(last["arguments"])
    assert {item["status"] for item in before} <= {"completed"}


async def test_a_failure_keeps_the_items_so_far(model: Frontend) -> None:
    model.engine.script.error = "the step failed"
    events = await events_of(model, tools=[WEATHER])
    assert events[-1]["type"] == "response.failed"
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[-1]["status"] == "incomplete"


async def test_log_probabilities_come_with_the_message_only(model: Frontend) -> None:
    events = await events_of(model, tools=[WEATHER], include=["message.output_text.logprobs"])
    entries = [entry for event in events for entry in event.get("logprobs", ())]
    text = "".join(entry["token"] for entry in entries)
    assert TEXT in text
    assert "Oslo" not in text
    assert THOUGHTS not in text
