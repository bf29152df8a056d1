import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFailedEvent, ResponseIncompleteEvent, ResponseTextDeltaEvent

from kvasir.frontend.answer_parts import PromptTokensDetails, Usage
from kvasir.frontend.endpoints.responses.answer import ResponseObject, usage_of
from kvasir.frontend.endpoints.responses.events import ResponseEvents
from kvasir.frontend.endpoints.responses.items import OutputItems
from kvasir.frontend.endpoints.responses.request import ResponsesRequest
from kvasir.frontend.errors import ApiError
from kvasir.request.params import SamplingParams
from runtime.frontend.harness import ANSWER, MODEL, Frontend, script_for
from runtime.frontend.streams import leave_after_first_token, named_events

BODY = {"input": "What is a pod?", "stream": True}
OPENING = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
]
CLOSING = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


async def events_of(frontend: Frontend, **body: object) -> list[Any]:
    """The parsed events; checks their framing and their numbers."""
    async with frontend.http() as client:
        response = await client.post("/v1/responses", json=BODY | body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = named_events(response.content)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def test_the_sequence_of_a_complete_response(frontend: Frontend) -> None:
    events = await events_of(frontend)
    types = [event["type"] for event in events]
    deltas = events[4:-4]
    assert types[:4] == OPENING
    assert types[-4:] == [*CLOSING, "response.completed"]
    assert {event["type"] for event in deltas} == {"response.output_text.delta"}
    assert "".join(event["delta"] for event in deltas) == ANSWER
    await frontend.idle()


async def test_the_events_agree_with_each_other(frontend: Frontend) -> None:
    events = await events_of(frontend)
    created, progress, added, part_added, *_, text_done, part_done, item_done, completed = events
    response = completed["response"]
    assert (created["response"]["status"], progress["response"]["status"]) == ("in_progress", "in_progress")
    assert created["response"]["id"] == progress["response"]["id"] == response["id"]
    assert created["response"]["output"] == added["item"]["content"] == []
    assert part_added["part"]["text"] == ""
    assert text_done["text"] == part_done["part"]["text"] == ANSWER
    assert response["output"] == [item_done["item"]]
    assert item_done["item"]["content"] == [part_done["part"]]
    assert {event["item_id"] for event in events if "item_id" in event} == {added["item"]["id"]}
    assert response["usage"]["output_tokens"] == len(frontend.engine.script.answer) + 1


async def test_the_client_accumulates_the_stream(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 3
    deltas = []
    async with (
        frontend.openai() as client,
        client.responses.stream(model=MODEL, input="What is a pod?") as stream,
    ):
        async for event in stream:
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
                frontend.engine.resume()
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == ANSWER
    assert len(deltas) > 1


async def test_the_synchronous_client_streams(frontend: Frontend) -> None:
    def use() -> str:
        with openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.responses.create(model=MODEL, input="What is a pod?", stream=True)
            return "".join(event.delta for event in stream if isinstance(event, ResponseTextDeltaEvent))

    assert await asyncio.to_thread(use) == ANSWER


async def test_the_token_limit_ends_with_response_incomplete(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        stream = await client.responses.create(model=MODEL, input="Hi", max_output_tokens=2, stream=True)
        last = [event async for event in stream][-1]
    assert isinstance(last, ResponseIncompleteEvent)
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


async def test_log_probabilities_come_with_their_text(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = len(frontend.engine.script.answer)  # the last token has no text
    deltas = []
    async with frontend.openai() as client:
        stream = await client.responses.create(
            model=MODEL, input="Hi", stream=True, include=["message.output_text.logprobs"], top_logprobs=1
        )
        async for event in stream:
            if event.type == "response.output_text.delta":
                deltas.append(event)
                frontend.engine.resume()
    entries = [entry for event in deltas for entry in event.logprobs]
    assert "".join(entry.token for entry in entries) == ANSWER + "<|end|>"
    assert [len(entry.top_logprobs or ()) for entry in entries] == [1] * len(entries)


async def test_text_with_many_byte_characters_is_never_broken(frontend: Frontend) -> None:
    text = 'Größe: 10 µm, 日本語, 🦊🦊, "done"\n'
    frontend.engine.script = script_for(text)
    events = await events_of(frontend)
    assert "".join(event["delta"] for event in events if "delta" in event) == text


async def test_a_failure_in_mid_stream_is_the_last_event(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 3
    async with frontend.openai() as client:
        stream = await client.responses.create(model=MODEL, input="Hi", stream=True)
        frontend.engine.script.error = "the step failed"
        frontend.engine.resume()
        events = [event async for event in stream]
    *before, last = events
    assert isinstance(last, ResponseFailedEvent)
    assert (last.response.status, last.sequence_number) == ("failed", len(before))
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert "the step failed" in last.response.error.message
    assert last.response.output_text
    await frontend.idle()


async def test_a_failure_before_the_first_token_is_an_http_error(frontend: Frontend) -> None:
    frontend.engine.script.answer, frontend.engine.script.error = [], "the step failed"
    async with frontend.openai() as client:
        with pytest.raises(openai.InternalServerError) as error:
            await client.responses.create(model=MODEL, input="Hi", stream=True)
    assert error.value.code == "request_failed"


def test_a_failure_before_any_other_event_follows_the_opening() -> None:
    params = SamplingParams(max_tokens=1, seed=0)
    response = ResponseObject(ResponsesRequest(input="Hi"), params, MODEL, "1")
    events = ResponseEvents(response, OutputItems(None))
    usage = Usage(1, 0, 1, PromptTokensDetails(0))
    written = events.failure(ApiError(503, "stopped"), usage_of(usage, 0))
    names = [line.removeprefix("event: ") for line in written.decode().splitlines() if line.startswith("event")]
    assert names == [*OPENING[:2], "response.failed"]


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_a_client_that_leaves_aborts_its_request(frontend: Frontend, stream: bool) -> None:
    frontend.engine.script.pause_at = 2
    body = json.dumps(BODY | {"stream": stream}).encode()
    await leave_after_first_token(frontend, body, "/v1/responses", read=stream)
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()
