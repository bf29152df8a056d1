"""POST /v1/responses, not streamed, read by OpenAI's client."""

from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseOutputMessage, ResponseOutputText

from runtime.frontend.harness import ANSWER, MODEL, Frontend, demo_model, running_frontend
from runtime.link_messages import prompt_of

QUESTION = "What is a pod?"
ASKED = "<|begin|><|user|>What is a pod?<|end|><|assistant|>"


def rendered(frontend: Frontend) -> str:
    _, tokenizer = demo_model()
    return tokenizer.decode(prompt_of(frontend.engine.seen.requests[-1]), skip_special_tokens=False)


async def create(frontend: Frontend, input: Any = QUESTION, **body: Any) -> Response:
    async with frontend.openai() as client:
        answer = await client.responses.create(model=MODEL, input=input, **body)
    assert isinstance(answer, Response)
    return answer


async def refused(frontend: Frontend, **body: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as error:
        await create(frontend, **body)
    assert frontend.engine.seen.requests == []
    return error.value


async def test_a_text_gets_the_assistants_message(frontend: Frontend) -> None:
    answer = await create(frontend)
    assert answer.id.startswith("resp_")
    assert (answer.object, answer.status, answer.model, answer.error) == ("response", "completed", MODEL, None)
    (item,) = answer.output
    assert isinstance(item, ResponseOutputMessage)
    assert (item.role, item.status) == ("assistant", "completed")
    assert answer.output_text == ANSWER
    assert rendered(frontend) == ASKED
    await frontend.idle()


async def test_usage_has_the_cached_tokens(frontend: Frontend) -> None:
    frontend.engine.script.cached = 3
    usage = (await create(frontend)).usage
    assert usage is not None
    prompt_tokens = len(prompt_of(frontend.engine.seen.requests[0]))
    tokens = len(frontend.engine.script.answer) + 1
    assert (usage.input_tokens, usage.output_tokens) == (prompt_tokens, tokens)
    assert usage.total_tokens == prompt_tokens + tokens
    assert usage.input_tokens_details.cached_tokens == 3


async def test_the_token_limit_makes_the_response_incomplete(frontend: Frontend) -> None:
    answer = await create(frontend, max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert isinstance(item := answer.output[0], ResponseOutputMessage)
    assert item.status == "incomplete"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 2


async def test_parameters_reach_the_engine_and_come_back(frontend: Frontend) -> None:
    answer = await create(frontend, temperature=0.5, top_p=0.9, max_output_tokens=7, metadata={"team": "a"})
    params = frontend.engine.seen.requests[0].params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 7)
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.9, 7)
    assert answer.metadata == {"team": "a"}


async def test_earlier_output_is_part_of_the_next_input(frontend: Frontend) -> None:
    first = await create(frontend)
    history = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "What is"}, {"type": "input_text", "text": "it?"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        *[item.model_dump() for item in first.output],
        {"type": "message", "role": "user", "content": "And a node?"},
    ]
    second = await create(frontend, history)
    assert second.output_text == ANSWER
    assert rendered(frontend) == (
        f"<|begin|><|user|>What is\nit?<|end|><|assistant|>{ANSWER}<|end|><|user|>And a node?<|end|><|assistant|>"
    )


async def test_instructions_and_leading_system_items_are_one_message(frontend: Frontend) -> None:
    items = [{"role": "developer", "content": "Use lists."}, {"role": "user", "content": QUESTION}]
    answer = await create(frontend, items, instructions="Be brief.")
    assert rendered(frontend) == f"<|begin|><|system|>Be brief.\nUse lists.<|end|>{ASKED.removeprefix('<|begin|>')}"
    assert answer.instructions == "Be brief."


async def test_what_asks_for_nothing_is_accepted(frontend: Frontend) -> None:
    answer = await create(
        frontend,
        store=True,
        tools=[],
        tool_choice="none",
        parallel_tool_calls=False,
        include=["reasoning.encrypted_content"],
        text={"format": {"type": "text"}, "verbosity": "medium"},
        reasoning={"effort": None, "summary": None},
        truncation="disabled",
        user="somebody",
        extra_body={"previous_response_id": None, "invented": 1},
    )
    assert answer.output_text == ANSWER
    assert answer.model_dump()["store"] is False


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
    ],
)
async def test_stored_state_is_refused_with_the_way(
    frontend: Frontend, body: dict[str, object], param: str
) -> None:
    error = await refused(frontend, **body)
    assert error.param == param
    assert "send the whole conversation in input" in error.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "some"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1 << 40}, "max_output_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "user", "content": "Hi"}] * 8193}, "input"),
        ({"input": "x " * 100_000}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ],
)
async def test_a_wrong_field_is_refused_by_its_name(
    frontend: Frontend, body: dict[str, object], param: str
) -> None:
    error = await refused(frontend, **body)
    assert error.param == param
    assert param in error.message or error.code == "context_length_exceeded"
    assert " max_tokens" not in error.message


async def test_an_unknown_model_is_404(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        with pytest.raises(openai.NotFoundError) as error:
            await client.responses.create(model="gpt-9", input=QUESTION)
    assert error.value.code == "model_not_found"


async def test_a_full_server_refuses_before_it_reads_the_body() -> None:
    async with running_frontend(max_live_requests=1) as frontend:
        frontend.engine.script.pause_at = 2
        async with frontend.openai() as client, frontend.http() as raw:
            stream = await client.responses.create(model=MODEL, input=QUESTION, stream=True)
            response = await raw.post("/v1/responses", json={})
            frontend.engine.resume()
            assert [event async for event in stream][-1].type == "response.completed"
    assert (response.status_code, response.json()["error"]["code"]) == (429, "too_many_requests")


async def test_log_probabilities_come_with_the_text(frontend: Frontend) -> None:
    answer = await create(frontend, include=["message.output_text.logprobs"], top_logprobs=2)
    assert isinstance(item := answer.output[0], ResponseOutputMessage)
    assert isinstance(part := item.content[0], ResponseOutputText)
    assert part.logprobs is not None
    assert len(part.logprobs) == len(frontend.engine.script.answer) + 1
    assert len(part.logprobs[0].top_logprobs) == 2
    assert answer.top_logprobs == 2


async def test_too_many_log_probabilities_are_refused(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.frontend.generation.logprobs.MAX_IN_ANSWER", 100)
    wanted: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 9}
    error = await refused(frontend, max_output_tokens=11, **wanted)
    assert error.param == "top_logprobs"
    await create(frontend, max_output_tokens=10, **wanted)


@pytest.mark.parametrize("room", [30, 300, 700, 1200, 1500, 2000])
async def test_truncation_drops_as_few_messages_as_it_takes(frontend: Frontend, room: int) -> None:
    system = {"role": "system", "content": "Be brief."}
    turns = [
        [{"role": "user", "content": f"{index} " + "pod " * 230}, {"role": "assistant", "content": "yes"}]
        for index in range(12)
    ]
    llm, question = frontend.service.llm, {"role": "user", "content": QUESTION}
    prompts = [
        await llm.input.render_chat([system, *(message for turn in turns[start:] for message in turn), question])
        for start in range(len(turns) + 1)
    ]
    asked = [message for turn in turns for message in turn]
    await create(
        frontend,
        [*asked, question],
        instructions="Be brief.",
        truncation="auto",
        max_output_tokens=llm.max_model_len - room,
    )
    expected = next(prompt for prompt in prompts if len(prompt) <= room)
    assert prompt_of(frontend.engine.seen.requests[0]) == expected


async def test_a_conversation_that_fits_is_not_truncated(frontend: Frontend) -> None:
    await create(frontend, truncation="auto")
    assert rendered(frontend) == ASKED


async def test_truncation_cannot_shorten_a_single_message(frontend: Frontend) -> None:
    error = await refused(frontend, input="x " * 100_000, truncation="auto")
    assert (error.param, error.code) == ("input", "context_length_exceeded")
