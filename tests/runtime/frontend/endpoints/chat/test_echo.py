"""`echo` in chats: the assistant's last message comes before its continuation."""

from typing import Any

import pytest

from runtime.frontend.harness import ANSWER, Frontend
from runtime.frontend.test_streaming import CHAT, QUESTION, events_of

BEGUN: list[Any] = [*QUESTION, {"role": "assistant", "content": [{"type": "text", "text": "Well: "}]}]
CONTINUED: dict[str, Any] = {"messages": BEGUN, "continue_final_message": True, "echo": True}


async def test_the_answer_begins_with_the_message(frontend: Frontend) -> None:
    async with frontend.http() as client:
        answer = (await client.post(CHAT, json=CONTINUED | {"n": 2})).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Well: " + ANSWER] * 2


async def test_each_choice_of_a_stream_begins_with_it(frontend: Frontend) -> None:
    texts = ["", ""]
    for event in await events_of(frontend, CHAT, **CONTINUED, n=2):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["Well: " + ANSWER] * 2


@pytest.mark.parametrize("body", [{"messages": QUESTION, "echo": True}, CONTINUED | {"echo": False}])
async def test_nothing_else_is_echoed(frontend: Frontend, body: dict[str, Any]) -> None:
    async with frontend.http() as client:
        answer = (await client.post(CHAT, json=body)).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER
