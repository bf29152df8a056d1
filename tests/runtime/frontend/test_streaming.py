import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageParam

from kvasir.link.protocol import Dead
from runtime.frontend.harness import ANSWER, MODEL, Frontend, running_frontend, script_for
from runtime.link_messages import prompt_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a pod?"}]


async def events_of(frontend: Frontend, path: str, **body: object) -> list[Any]:
    """The parsed events of a stream; checks its framing byte by byte."""
    async with frontend.http() as client, client.stream("POST", path, json={"stream": True, **body}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        raw = await response.aread()
    assert raw.endswith(b"\n\n")
    lines = raw.removesuffix(b"\n\n").split(b"\n\n")
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    payloads = [line.removeprefix(b"data: ") for line in lines]
    if payloads[-1] == b"[DONE]":
        payloads.pop()
    else:
        assert "error" in json.loads(payloads[-1])
    return [json.loads(payload) for payload in payloads]


async def test_a_chat_streams_the_role_then_text_then_the_reason(frontend: Frontend) -> None:
    events = await events_of(frontend, CHAT, messages=QUESTION)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert all("usage" not in event for event in events)
    await frontend.idle()


async def test_a_completion_streams_its_text(frontend: Frontend) -> None:
    events = await events_of(frontend, COMPLETIONS, prompt="What is a pod?", max_tokens=50)
    assert "".join(event["choices"][0]["text"] for event in events) == ANSWER
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert {event["object"] for event in events} == {"text_completion"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_comes_last_without_choices_and_is_null_before(frontend: Frontend, path: str) -> None:
    asked = {"stream_options": {"include_usage": True}, "max_tokens": 50}
    frontend.engine.script.cached = 3
    prompt = {"messages": QUESTION} if path == CHAT else {"prompt": [5, 6, 7]}
    *chunks, last = await events_of(frontend, path, **asked, **prompt)
    prompt_tokens = len(prompt_of(frontend.engine.seen.requests[0]))
    tokens = len(frontend.engine.script.answer) + 1
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_fingerprint_is_in_the_last_chunks(frontend: Frontend, path: str) -> None:
    prompt = {"messages": QUESTION} if path == CHAT else {"prompt": "Hi", "max_tokens": 50}
    events = await events_of(frontend, path, stream_options={"include_usage": True}, **prompt)
    assert [event.get("system_fingerprint") for event in events[-2:]] == [frontend.service.fingerprint] * 2
    assert not any("system_fingerprint" in event for event in events[:-2])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_continuous_usage_grows_with_every_chunk(frontend: Frontend, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    prompt = {"messages": QUESTION} if path == CHAT else {"prompt": [5, 6, 7]}
    events = await events_of(frontend, path, stream_options=options, max_tokens=50, **prompt)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == len(frontend.engine.script.answer) + 1
    assert counts[-1] == counts[-2]
    for event in events:
        assert event["usage"]["total_tokens"] == (
            event["usage"]["prompt_tokens"] + event["usage"]["completion_tokens"]
        )


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
    ],
)
async def test_options_of_streams_that_would_do_nothing_are_refused(
    frontend: Frontend, path: str, body: dict[str, object], param: str
) -> None:
    prompt = {"messages": QUESTION} if path == CHAT else {"prompt": "Hi"}
    async with frontend.http() as client:
        response = await client.post(path, json=body | prompt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_token_ids_of_a_streamed_chat_come_with_their_text(frontend: Frontend) -> None:
    first, *events = await events_of(frontend, CHAT, messages=QUESTION, return_token_ids=True)
    assert first["prompt_token_ids"] == prompt_of(frontend.engine.seen.requests[0])
    assert "token_ids" not in first["choices"][0]
    tokens = [token for event in events for token in event["choices"][0]["token_ids"]]
    assert tokens[:-1] == frontend.engine.script.answer


async def test_prompt_token_ids_of_a_stream_come_once_per_choice(frontend: Frontend) -> None:
    events = await events_of(frontend, COMPLETIONS, prompt=[[5], [6, 7]], max_tokens=5, return_token_ids=True)
    for index, prompt in enumerate([[5], [6, 7]]):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert [choice.get("prompt_token_ids") for choice in choices] == [prompt] + [None] * (len(choices) - 1)
        tokens = [token for choice in choices for token in choice["token_ids"]]
        assert tokens == frontend.engine.script.answer[:5]
    await frontend.idle()


async def test_text_with_many_byte_characters_is_never_broken(frontend: Frontend) -> None:
    text = "Größe: 10 µm, 日本語, 🦊🦊, done"
    frontend.engine.script = script_for(text)
    events = await events_of(frontend, CHAT, messages=QUESTION)
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


async def test_the_client_library_reads_both_streams(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        chat = await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in chat]
        completion = await client.completions.create(model=MODEL, prompt="Hi", stream=True, max_tokens=50)
        text = "".join([chunk.choices[0].text async for chunk in completion])
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert chunks[-1].usage is not None
    assert text == ANSWER


async def test_an_error_before_the_first_token_is_an_http_error(frontend: Frontend) -> None:
    frontend.engine.script.error = "the sampler gave up"
    frontend.engine.script.answer = []
    async with frontend.http() as client:
        response = await client.post(CHAT, json={"messages": QUESTION, "stream": True})
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/json"
    assert "the sampler gave up" in response.json()["error"]["message"]


async def test_an_error_in_mid_stream_is_its_last_event(frontend: Frontend) -> None:
    frontend.engine.script.error = "the sampler gave up"
    events = await events_of(frontend, CHAT, messages=QUESTION)
    assert len(events) > 2
    error = events[-1]["error"]
    assert "the sampler gave up" in error["message"]
    assert (error["type"], error["code"]) == ("server_error", "request_failed")
    await frontend.idle()


async def test_a_lost_engine_ends_its_streams_with_an_error() -> None:
    async with running_frontend(hold_timeout=0.3) as frontend:
        frontend.engine.script.pause_at = 3
        async with (
            frontend.http() as client,
            client.stream("POST", CHAT, json={"messages": QUESTION, "stream": True}) as response,
        ):
            lines = response.aiter_lines()
            received = [await anext(lines)]
            frontend.engine.close(Dead("out of memory"))
            frontend.engines.clear()
            received += [line async for line in lines]
        assert "error" in json.loads(received[-2].removeprefix("data: "))
        assert "[DONE]" not in "".join(received)
        await frontend.idle()
