import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kvasir.frontend.parsers.streaming.emitter import MAX_HELD_CHARACTERS
from runtime.frontend.harness import Frontend
from runtime.frontend.talking import (
    ARGUMENTS,
    CALL,
    QUESTION,
    SECOND_CALL,
    TOOLS,
    answer_of,
    arguments_of,
    deltas_in_two_parts,
    says,
    talking_frontend,
    tokens_of,
)
from runtime.frontend.test_streaming import CHAT, events_of


@pytest.fixture
async def talking() -> AsyncIterator[Frontend]:
    async with talking_frontend() as frontend:
        yield frontend


async def test_a_stream_has_openais_deltas(talking: Frontend) -> None:
    says(talking, f"I count.{CALL}\n{SECOND_CALL}")
    events = await events_of(talking, CHAT, messages=QUESTION, tools=TOOLS)
    role, *deltas, last = [event["choices"][0]["delta"] for event in events]
    assert role == {"role": "assistant", "content": ""}
    assert last == {}
    assert [event["choices"][0]["finish_reason"] for event in events[-2:]] == [None, "tool_calls"]
    content = "".join(delta["content"] for delta in deltas if "content" in delta)
    assert content == "I count."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    begun = [call for call in calls if "id" in call]
    assert [(call["index"], call["type"], call["function"]) for call in begun] == [
        (0, "function", {"name": "pods", "arguments": ""}),
        (1, "function", {"name": "nodes", "arguments": ""}),
    ]
    rest = [call for call in calls if "id" not in call]
    assert all(call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"} for call in rest)
    for index, arguments in ((0, ARGUMENTS), (1, "{}")):
        assert "".join(call["function"]["arguments"] for call in rest if call["index"] == index) == arguments
    assert begun[0]["id"] != begun[1]["id"]
    await talking.idle()


async def test_tokens_are_reported_once_and_with_their_chunk(talking: Frontend) -> None:
    says(talking, f"I count.{CALL}")
    body: dict[str, Any] = {"tools": TOOLS, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    whole = (await answer_of(talking, **body))["choices"][0]
    events = await events_of(talking, CHAT, messages=QUESTION, **body)
    choices = [event["choices"][0] for event in events]
    streamed = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    token_ids = [token_id for choice in choices for token_id in choice.get("token_ids") or ()]
    assert streamed == whole["logprobs"]["content"]
    assert token_ids == whole["token_ids"] == [*tokens_of(f"I count.{CALL}"), 1]
    for choice in choices:
        entries = choice["logprobs"]["content"] if choice["logprobs"] else []
        assert len(entries) == len(choice.get("token_ids") or ())


LONG = json.dumps({"namespace": "n" * MAX_HELD_CHARACTERS, "labels": {"app": "web"}})


@pytest.mark.parametrize("known", [LONG[: MAX_HELD_CHARACTERS + 5], LONG[: LONG.index("labels")], LONG])
async def test_arguments_are_sent_as_they_are_written(talking: Frontend, known: str) -> None:
    """The engine goes on when the client has the arguments so far."""
    call = CALL.replace(ARGUMENTS, LONG)
    end = call.rindex(known) + len(known)
    parts = call[:end], call[end:]
    sent = known.removesuffix(', "')
    deltas = await deltas_in_two_parts(
        talking, parts, lambda deltas: arguments_of(deltas).startswith(sent), tools=TOOLS
    )
    assert arguments_of(deltas) == LONG


async def test_a_call_is_sent_once_its_arguments_are_whole(talking: Frontend) -> None:
    end = CALL.index("\n</tool_call>")
    deltas = await deltas_in_two_parts(
        talking, (CALL[:end], CALL[end:]), lambda deltas: arguments_of(deltas) == ARGUMENTS, tools=TOOLS
    )
    assert arguments_of(deltas) == ARGUMENTS


async def test_usage_counts_the_tokens_of_calls(talking: Frontend) -> None:
    tokens = len(tokens_of(CALL)) + 1
    usage = (await answer_of(talking, tools=TOOLS))["usage"]
    assert (usage["completion_tokens"], usage["completion_tokens_details"]) == (tokens, {"reasoning_tokens": 0})
    asked = {"include_usage": True, "continuous_usage_stats": True}
    events = await events_of(talking, CHAT, messages=QUESTION, tools=TOOLS, stream_options=asked)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == usage
    assert all("completion_tokens_details" in event["usage"] for event in events)
