from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime.frontend.harness import ANSWER, MODEL, Frontend, demo_model
from runtime.frontend.talking import (
    ARGUMENTS,
    CALL,
    QUESTION,
    TEMPLATE,
    TOOLS,
    answer_of,
    arguments_of,
    deltas_in_two_parts,
    deltas_of,
    error_of,
    says,
    talking_frontend,
)
from runtime.frontend.test_streaming import CHAT, events_of

THOUGHT = "The user asks for pods."
TEXT = f"<think>{THOUGHT}</think>{ANSWER}"
OPEN_TEMPLATE = TEMPLATE.replace("<|assistant|>", "<|assistant|><think>\n")


@pytest.fixture
async def talking() -> AsyncIterator[Frontend]:
    async with talking_frontend(TEXT) as frontend:
        yield frontend


def reasoning_of(deltas: list[dict[str, Any]]) -> str:
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
    return "".join(delta.get("reasoning_content", "") for delta in deltas)


def content_of(deltas: list[dict[str, Any]]) -> str:
    return "".join(delta.get("content", "") for delta in deltas)


def tokens_of(text: str) -> int:
    return len(demo_model()[1].encode(text, add_special_tokens=False))


async def test_reasoning_is_apart_from_the_content_under_both_names(talking: Frontend) -> None:
    message = (await answer_of(talking))["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": ANSWER,
        "refusal": None,
        "reasoning_content": THOUGHT,
        "reasoning": THOUGHT,
    }


async def test_reasoning_streams_before_the_content(talking: Frontend) -> None:
    role, *deltas = await deltas_of(talking)
    assert role == {"role": "assistant", "content": ""}
    assert (reasoning_of(deltas), content_of(deltas)) == (THOUGHT, ANSWER)
    kinds = ["reasoning" if "reasoning" in delta else "content" for delta in deltas if delta]
    assert kinds == sorted(kinds, reverse=True)
    await talking.idle()


async def test_reasoning_is_sent_as_it_is_written(talking: Frontend) -> None:
    parts = "<think>The user asks", " for pods.</think>No."
    deltas = await deltas_in_two_parts(talking, parts, lambda deltas: reasoning_of(deltas) == "The user asks")
    assert (reasoning_of(deltas), content_of(deltas)) == (THOUGHT, "No.")


async def test_the_template_may_have_begun_the_reasoning() -> None:
    async with talking_frontend(f"{THOUGHT}</think>{ANSWER}", chat_template=OPEN_TEMPLATE) as frontend:
        message = (await answer_of(frontend))["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == (THOUGHT, ANSWER)


async def test_reasoning_is_part_of_the_text_if_the_server_says_so() -> None:
    async with talking_frontend(TEXT, tool_call_parser="none", reasoning_parser="none") as frontend:
        answer = await answer_of(frontend)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert "completion_tokens_details" not in answer["usage"]


async def test_an_answer_without_reasoning_has_no_field_for_it(talking: Frontend) -> None:
    says(talking, ANSWER)
    answer = await answer_of(talking)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_answer_cut_off_in_the_reasoning_has_no_content(talking: Frontend) -> None:
    choice = (await answer_of(talking, max_tokens=tokens_of("<think>The user")))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert THOUGHT.startswith(choice["message"]["reasoning"])


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_can_be_left_out_and_still_counts(talking: Frontend, stream: bool) -> None:
    if stream:
        events = await events_of(
            talking, CHAT, messages=QUESTION, include_reasoning=False, stream_options={"include_usage": True}
        )
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        usage = events[-1]["usage"]
    else:
        answer = await answer_of(talking, include_reasoning=False)
        deltas, usage = [answer["choices"][0]["message"]], answer["usage"]
    assert content_of(deltas) == ANSWER
    assert not any("reasoning" in delta or "reasoning_content" in delta for delta in deltas)
    assert usage["completion_tokens_details"]["reasoning_tokens"] >= tokens_of(f"<think>{THOUGHT}")


async def test_the_tokens_of_the_reasoning_are_counted_for_all_choices(talking: Frontend) -> None:
    usage = (await answer_of(talking, n=2))["usage"]
    completion = 2 * (tokens_of(TEXT) + 1)
    assert usage["completion_tokens"] == completion
    # The end mark is several tokens of the demo model: those that come with it count as reasoning.
    count = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 2 * tokens_of(f"<think>{THOUGHT}</think") <= count <= completion


async def test_calls_follow_the_reasoning(talking: Frontend) -> None:
    says(talking, f"<think>{THOUGHT}</think>\n{CALL}")
    choice = (await answer_of(talking, tools=TOOLS))["choices"][0]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == (THOUGHT, None)
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    deltas = await deltas_of(talking, tools=TOOLS)
    assert (reasoning_of(deltas), arguments_of(deltas)) == (THOUGHT, ARGUMENTS)


async def test_a_call_in_the_reasoning_is_a_thought(talking: Frontend) -> None:
    says(talking, f"<think>I could say {CALL}.</think>{ANSWER}")
    choice = (await answer_of(talking, tools=TOOLS))["choices"][0]
    assert (choice["message"]["reasoning"], choice["finish_reason"]) == (f"I could say {CALL}.", "stop")


async def test_tokens_are_reported_while_the_reasoning_is_hidden(talking: Frontend) -> None:
    body: dict[str, Any] = {"include_reasoning": False, "logprobs": True}
    whole = (await answer_of(talking, **body))["choices"][0]
    events = await events_of(talking, CHAT, messages=QUESTION, **body)
    choices = [event["choices"][0] for event in events]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert entries == whole["logprobs"]["content"]
    assert len(entries) == tokens_of(TEXT) + 1


async def test_a_continued_message_is_content(talking: Frontend) -> None:
    says(talking, " is a group.")
    messages = [*QUESTION, {"role": "assistant", "content": "A pod"}]
    async with talking_frontend(" is a group.", reasoning_parser="deepseek_r1") as frontend:
        body = {"messages": messages, "continue_final_message": True}
        message = (await answer_of(frontend, **body))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": " is a group.", "refusal": None}


async def test_beams_are_parsed_too(talking: Frontend) -> None:
    says(talking, "")
    body = {"use_beam_search": True, "n": 1, "max_tokens": 2}
    assert "completion_tokens_details" in (await answer_of(talking, **body))["usage"]


async def test_the_client_library_reads_the_reasoning(talking: Frontend) -> None:
    async with talking.openai() as client:
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, reasoning_effort="low")
        async with client.chat.completions.stream(model=MODEL, messages=QUESTION) as stream:
            final = await stream.get_final_completion()
    for each in (answer, final):
        assert each.choices[0].message.content == ANSWER
        assert each.choices[0].message.reasoning_content == THOUGHT  # type: ignore[attr-defined]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens


# ------------------------------------------------------------------------------------------------ the budget


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"thinking_token_budget": 5}, 5),
        ({"thinking_token_budget": 0}, 0),
        ({"chat_template_kwargs": {"thinking_budget": 7}}, 7),
        ({"thinking_token_budget": 5, "chat_template_kwargs": {"thinking_budget": 7}}, 5),
    ],
)
async def test_a_budget_reaches_the_engine(talking: Frontend, fields: dict[str, Any], budget: int) -> None:
    await answer_of(talking, **fields)
    constraint = talking.engine.seen.requests[0].constraint
    assert constraint is not None
    assert constraint.thinking_budget == budget
    assert constraint.reasoning_end


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"thinking_token_budget": -1},
        {"chat_template_kwargs": {"thinking_budget": -1}},
        {"chat_template_kwargs": {"thinking_budget": "low"}},
    ],
)
async def test_without_a_budget_the_engine_has_no_bound(talking: Frontend, fields: dict[str, Any]) -> None:
    await answer_of(talking, **fields)
    assert talking.engine.seen.requests[0].constraint is None


async def test_a_budget_that_cannot_be_enforced_is_refused(talking: Frontend, frontend: Frontend) -> None:
    param, message = await error_of(frontend, thinking_token_budget=5)
    assert param == "thinking_token_budget"
    assert "start the server with --reasoning-parser" in message
    param, message = await error_of(talking, thinking_token_budget=5, use_beam_search=True)
    assert param == "thinking_token_budget"
    assert "not supported with use_beam_search" in message
    param, message = await error_of(talking, thinking_token_budget=-2)
    assert param == "thinking_token_budget"
    await answer_of(frontend, chat_template_kwargs={"thinking_budget": 5})  # a variable like any other
