from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, TextBlock

from runtime.frontend.harness import ANSWER, MODEL, Frontend, script_for
from runtime.frontend.streams import named_events
from runtime.link_messages import prompt_of

QUESTION: list[MessageParam] = [{"role": "user", "content": "What is a pod?"}]


async def events_of(frontend: Frontend, **body: object) -> list[Any]:
    """The parsed events; checks their framing."""
    asked = {"messages": QUESTION, "max_tokens": 50, "stream": True}
    async with frontend.http() as client:
        response = await client.post("/v1/messages", json=asked | body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"] == response.headers["x-request-id"]
    return named_events(response.content)


async def test_the_sequence_of_events(frontend: Frontend) -> None:
    frontend.engine.script.cached = 3
    events = await events_of(frontend)
    start, block_start, ping, *deltas, block_stop, delta, stop = events
    assert [event["type"] for event in (start, block_start, ping, block_stop, delta, stop)] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert {event["type"] for event in deltas} == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for event in deltas) == ANSWER
    message = start["message"]
    assert (message["content"], message["stop_reason"], message["model"]) == ([], None, MODEL)
    prompt_tokens = len(prompt_of(frontend.engine.seen.requests[0]))
    usage = {"input_tokens": prompt_tokens - 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3}
    assert message["usage"] == usage | {"output_tokens": 0}
    assert delta["usage"] == usage | {"output_tokens": len(frontend.engine.script.answer) + 1}
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    await frontend.idle()


async def test_the_client_accumulates_the_stream(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 3
    texts = []
    async with (
        frontend.anthropic() as client,
        client.messages.stream(model=MODEL, messages=QUESTION, max_tokens=50) as stream,
    ):
        async for text in stream.text_stream:
            texts.append(text)
            frontend.engine.resume()
        final = await stream.get_final_message()
    assert isinstance(final.content[0], TextBlock)
    assert "".join(texts) == final.content[0].text == ANSWER
    assert len(texts) > 1
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == len(frontend.engine.script.answer) + 1


@pytest.mark.parametrize(
    ("body", "stop"),
    [
        ({"max_tokens": 2}, {"stop_reason": "max_tokens", "stop_sequence": None}),
        ({"stop_sequences": [" group"]}, {"stop_reason": "stop_sequence", "stop_sequence": " group"}),
    ],
)
async def test_the_last_delta_has_the_reason_of_the_end(
    frontend: Frontend, body: dict[str, object], stop: dict[str, object]
) -> None:
    events = await events_of(frontend, **body)
    assert events[-2]["delta"] == stop


async def test_text_with_many_byte_characters_is_never_broken(frontend: Frontend) -> None:
    text = 'Größe: 10 µm, 日本語, 🦊🦊, "done"\n'
    frontend.engine.script = script_for(text)
    deltas = [event["delta"] for event in await events_of(frontend) if event["type"] == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == text


async def test_a_failure_in_mid_stream_is_the_clients_error(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 3
    async with frontend.anthropic() as client:
        stream = await client.messages.create(model=MODEL, messages=QUESTION, max_tokens=50, stream=True)
        frontend.engine.script.error = "the step failed"
        frontend.engine.resume()
        with pytest.raises(anthropic.APIStatusError, match="the step failed") as error:
            [event async for event in stream]
    assert isinstance(error.value.body, dict)
    assert error.value.body["error"]["type"] == "api_error"
    await frontend.idle()


async def test_a_failure_before_the_first_token_is_an_http_error(frontend: Frontend) -> None:
    frontend.engine.script.answer, frontend.engine.script.error = [], "the step failed"
    async with frontend.anthropic() as client:
        with pytest.raises(anthropic.InternalServerError, match="the step failed"):
            await client.messages.create(model=MODEL, messages=QUESTION, max_tokens=50, stream=True)
