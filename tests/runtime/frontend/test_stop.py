import asyncio
from typing import Any

import pytest

from runtime.frontend.harness import ANSWER, MODEL, Frontend, demo_model
from runtime.frontend.test_streaming import CHAT, COMPLETIONS, QUESTION, events_of


def tokens_up_to(end: int) -> list[int]:
    _, tokenizer = demo_model()
    ids = tokenizer.encode(ANSWER, add_special_tokens=False)
    count = next(n for n in range(len(ids) + 1) if len(tokenizer.decode(ids[:n])) >= end)
    return ids[:count]


@pytest.mark.parametrize(
    ("asked", "text", "reason"),
    [
        ({"stop": "group"}, "A pod is a ", "group"),
        ({"stop": ["nowhere", "of con", "is a group"]}, "A pod ", "is a group"),
        ({"stop": ["group"], "include_stop_str_in_output": True}, "A pod is a group", "group"),
        ({"stop": "A pod"}, "", "A pod"),
    ],
)
async def test_stop_string_ends_the_text_and_counts_in_usage(
    frontend: Frontend, asked: dict[str, Any], text: str, reason: str
) -> None:
    used = tokens_up_to(ANSWER.index(reason) + len(reason))
    async with frontend.http() as client:
        body = {"prompt": "Hi", "max_tokens": 50, "return_token_ids": True, "logprobs": 0, **asked}
        answer = (await client.post(COMPLETIONS, json=body)).json()
        del body["prompt"], body["logprobs"]
        chat = (await client.post(CHAT, json={**body, "messages": QUESTION, "logprobs": True})).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", reason)
    assert choice["token_ids"] == used
    assert len(choice["logprobs"]["tokens"]) == len(used)
    assert answer["usage"]["completion_tokens"] == len(used)
    choice = chat["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", reason)
    assert len(choice["logprobs"]["content"]) == len(used)
    await frontend.idle()


async def test_a_stream_never_shows_a_part_of_the_stop_string(frontend: Frontend) -> None:
    events = await events_of(frontend, CHAT, messages=QUESTION, stop=["group of"])
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "A pod is a "
    last = events[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "group of")


async def test_engine_aborts_a_request_that_a_stop_string_ended(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = len(tokens_up_to(ANSWER.index("group") + 5))
    async with frontend.openai() as client:
        answer = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=50, stop="group")
    assert answer.choices[0].text == "A pod is a "
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()


async def test_stop_strings_wait_for_the_least_number_of_tokens(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        answer = await client.completions.create(
            model=MODEL,
            prompt="Hi",
            max_tokens=50,
            stop=["o"],
            extra_body={"min_tokens": len(tokens_up_to(ANSWER.index("group") + 5))},
        )
    assert answer.choices[0].text == ANSWER[: ANSWER.index("of")]


async def test_stop_token_is_reported_and_its_text_kept_if_asked(frontend: Frontend) -> None:
    model, tokenizer = demo_model()
    body = {"prompt": "Hi", "max_tokens": 50, "include_stop_str_in_output": True, "skip_special_tokens": False}
    async with frontend.http() as client:
        answer = (await client.post(COMPLETIONS, json=body)).json()
    assert answer["choices"][0]["text"] == ANSWER + str(tokenizer.backend.id_to_token(model.eos_token_ids[0]))
