"""POST /v1/messages and /v1/messages/count_tokens, not streamed, read by Anthropic's client."""

import asyncio
import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock

from runtime.frontend.harness import ANSWER, MODEL, Frontend, demo_model
from runtime.frontend.streams import leave_after_first_token
from runtime.link_messages import prompt_of

QUESTION = [{"role": "user", "content": "What is a pod?"}]
ASKED = "<|begin|><|user|>What is a pod?<|end|><|assistant|>"


def rendered(frontend: Frontend) -> str:
    _, tokenizer = demo_model()
    return tokenizer.decode(prompt_of(frontend.engine.seen.requests[-1]), skip_special_tokens=False)


async def create(frontend: Frontend, messages: Any = QUESTION, max_tokens: int = 50, **body: Any) -> Message:
    async with frontend.anthropic() as client:
        answer = await client.messages.create(model=MODEL, messages=messages, max_tokens=max_tokens, **body)
    assert isinstance(answer, Message)
    return answer


async def test_a_question_gets_the_assistants_message(frontend: Frontend) -> None:
    answer = await create(frontend)
    assert answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    (block,) = answer.content
    assert isinstance(block, TextBlock)
    assert block.text == ANSWER
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert rendered(frontend) == ASKED
    await frontend.idle()


async def test_the_synchronous_client_asks(frontend: Frontend) -> None:
    def use() -> Message:
        with anthropic.Anthropic(base_url=frontend.url, api_key="none", max_retries=0) as client:
            return client.messages.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=50)

    answer = await asyncio.to_thread(use)
    assert isinstance(answer.content[0], TextBlock)
    assert answer.content[0].text == ANSWER


async def test_usage_counts_cached_tokens_apart(frontend: Frontend) -> None:
    frontend.engine.script.cached = 3
    usage = (await create(frontend)).usage
    assert usage.cache_read_input_tokens == 3
    assert usage.input_tokens == len(prompt_of(frontend.engine.seen.requests[0])) - 3
    assert usage.output_tokens == len(frontend.engine.script.answer) + 1


async def test_the_system_prompt_may_be_a_text_or_blocks(frontend: Frontend) -> None:
    with_system = ASKED.replace("<|user|>", "<|system|>Be\nbrief.<|end|><|user|>")
    await create(frontend, system="Be\nbrief.")
    assert rendered(frontend) == with_system
    cached = {"type": "ephemeral"}
    blocks = [{"type": "text", "text": "Be", "cache_control": cached}, {"type": "text", "text": "brief."}]
    await create(frontend, system=blocks)
    assert rendered(frontend) == with_system


async def test_neighbours_of_one_role_become_one_message(frontend: Frontend) -> None:
    blocks = [
        {"type": "text", "text": "What", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "is"},
    ]
    await create(frontend, [{"role": "user", "content": blocks}, {"role": "user", "content": "it?"}])
    assert rendered(frontend) == "<|begin|><|user|>What\nis\nit?<|end|><|assistant|>"


async def test_an_answer_can_be_sent_back(frontend: Frontend) -> None:
    first = await create(frontend)
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    content = [thought, *[block.model_dump() for block in first.content]]
    await create(
        frontend, [*QUESTION, {"role": "assistant", "content": content}, {"role": "user", "content": "Why?"}]
    )
    assert rendered(frontend) == f"{ASKED}{ANSWER}<|end|><|user|>Why?<|end|><|assistant|>"


async def test_the_answer_continues_a_last_message_of_the_assistant(frontend: Frontend) -> None:
    await create(frontend, [*QUESTION, {"role": "assistant", "content": "A pod is"}])
    assert rendered(frontend) == ASKED + "A pod is"


async def test_parameters_reach_the_engine(frontend: Frontend) -> None:
    await create(
        frontend,
        max_tokens=7,
        metadata={"user_id": "1"},
        service_tier="auto",
        tools=[],
        thinking={"type": "disabled"},
        # The latest clients have no parameters for these.
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 40, "invented": 1},
    )
    params = frontend.engine.seen.requests[0].params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.9, 40, 7)


async def test_the_reason_of_the_end_is_the_token_limit(frontend: Frontend) -> None:
    answer = await create(frontend, max_tokens=2)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 2)


async def test_the_reason_of_the_end_is_a_stop_sequence(frontend: Frontend) -> None:
    answer = await create(frontend, stop_sequences=["v", "w", "x", "y", " group"])  # no limit of four
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " group")
    assert isinstance(answer.content[0], TextBlock)
    assert answer.content[0].text == ANSWER.partition(" group")[0]


async def test_a_token_limit_beyond_the_context_means_its_rest(frontend: Frontend) -> None:
    limit = frontend.service.llm.max_model_len
    frontend.engine.script.answer = [frontend.engine.script.answer[0]] * limit
    answer = await create(frontend, max_tokens=10 * limit)
    assert answer.stop_reason == "model_context_window_exceeded"
    assert answer.usage.input_tokens + answer.usage.output_tokens == limit


async def test_tokens_are_counted_as_the_messages_count_them(frontend: Frontend) -> None:
    async with frontend.anthropic() as client:
        count = await client.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "What is a pod?"}], system="Be brief."
        )
    assert frontend.engine.seen.requests == []
    answer = await create(frontend, system="Be brief.")
    assert count.input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_a_client_that_leaves_aborts_its_request(frontend: Frontend, stream: bool) -> None:
    frontend.engine.script.pause_at = 2
    body = json.dumps({"messages": QUESTION, "max_tokens": 50, "stream": stream}).encode()
    await leave_after_first_token(frontend, body, "/v1/messages", read=stream)
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()
