"""POST /v1/chat/completions, not streamed."""

from typing import Any

from openai.types.chat import ChatCompletionMessageParam

from kvasir import __version__
from runtime.frontend.harness import ANSWER, MODEL, Frontend, demo_model
from runtime.link_messages import prompt_of

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a pod?"}]


async def test_a_question_gets_the_assistants_message(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION)
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(frontend.engine.script.answer) + 1
    await frontend.idle()


async def test_an_answer_has_vllms_fields(frontend: Frontend) -> None:
    async with frontend.http() as client:
        answers = [
            (await client.post("/v1/chat/completions", json={"messages": QUESTION})).json(),
            (await client.post("/v1/completions", json={"prompt": "Hi"})).json(),
        ]
    for answer in answers:
        assert answer["kv_transfer_params"] is None
        assert answer["choices"][0]["stop_reason"] is None
        assert answer["system_fingerprint"] == frontend.service.fingerprint
    model, _ = demo_model()
    assert frontend.service.fingerprint == f"kvasir-{__version__}-{model.fingerprint[:8]}"


async def test_prompt_is_the_template_without_further_special_tokens(frontend: Frontend) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *QUESTION]
    async with frontend.http() as client:
        response = await client.post("/v1/chat/completions", json={"messages": messages, "return_token_ids": True})
    _, tokenizer = demo_model()
    text = tokenizer.decode(response.json()["prompt_token_ids"], skip_special_tokens=False)
    assert text == "<|begin|><|system|>Be brief.<|end|><|user|>What is a pod?<|end|><|assistant|>"
    assert response.json()["choices"][0]["token_ids"][:-1] == frontend.engine.script.answer


async def test_without_max_tokens_an_answer_may_fill_the_context(frontend: Frontend) -> None:
    async with frontend.http() as client:
        await client.post("/v1/chat/completions", json={"messages": QUESTION})
    (request,) = frontend.engine.seen.requests
    assert request.params.max_tokens == frontend.service.llm.max_model_len - len(prompt_of(request))


async def test_max_completion_tokens_wins_over_its_older_name(frontend: Frontend) -> None:
    async with frontend.http() as client:
        body = {"messages": QUESTION, "max_tokens": 3, "max_completion_tokens": 5}
        await client.post("/v1/chat/completions", json=body)
    assert frontend.engine.seen.requests[0].params.max_tokens == 5


async def test_parts_are_joined_and_developer_becomes_system(frontend: Frontend) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    async with frontend.http() as client:
        response = await client.post("/v1/chat/completions", json={"messages": messages, "return_token_ids": True})
    _, tokenizer = demo_model()
    text = tokenizer.decode(response.json()["prompt_token_ids"], skip_special_tokens=False)
    assert text == "<|begin|><|system|>Be brief.<|end|><|user|>one\ntwo<|end|><|assistant|>"


async def test_answer_can_be_sent_back_as_the_library_dumps_it(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        first = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        dumped: Any = first.choices[0].message.model_dump()
        question: ChatCompletionMessageParam = {"role": "user", "content": "And a node?"}
        second = await client.chat.completions.create(model=MODEL, messages=[*QUESTION, dumped, question])
    assert second.choices[0].message.content == ANSWER


async def test_what_clients_send_for_their_own_books_is_accepted(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            user="somebody",
            metadata={"team": "a"},
            store=False,
            n=1,
            stop=None,
            presence_penalty=0,
            frequency_penalty=0.0,
            logit_bias={},
            logprobs=False,
            response_format={"type": "text"},
            tool_choice="none",
            parallel_tool_calls=True,
            service_tier="auto",
        )
    assert answer.choices[0].message.content == ANSWER


async def test_an_answer_can_continue_the_last_message(frontend: Frontend) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "A pod is"}]
    _, tokenizer = demo_model()
    for asked in ({}, {"add_generation_prompt": False}):
        body = {"messages": messages, "continue_final_message": True, **asked}
        async with frontend.http() as client:
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        text = tokenizer.decode(prompt_of(frontend.engine.seen.requests[-1]), skip_special_tokens=False)
        assert text == "<|begin|><|user|>What is a pod?<|end|><|assistant|>A pod is"


async def test_a_prompt_may_end_without_the_beginning_of_an_answer(frontend: Frontend) -> None:
    async with frontend.http() as client:
        await client.post("/v1/chat/completions", json={"messages": QUESTION, "add_generation_prompt": False})
    _, tokenizer = demo_model()
    text = tokenizer.decode(prompt_of(frontend.engine.seen.requests[0]), skip_special_tokens=False)
    assert text == "<|begin|><|user|>What is a pod?<|end|>"


async def test_sampling_fields_of_a_chat_reach_the_engine(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            presence_penalty=0.5,
            frequency_penalty=-2,
            logit_bias={"11": 100},
            seed=7,
            extra_body={
                "min_p": 0.1,
                "repetition_penalty": 1.2,
                "min_tokens": 3,
                "cache_salt": "tenant",
                "truncate_prompt_tokens": 4,
            },
        )
    request = frontend.engine.seen.requests[0]
    params = request.params
    assert (params.presence_penalty, params.frequency_penalty, params.logit_bias) == (0.5, -2.0, ((11, 100.0),))
    assert (params.min_p, params.repetition_penalty, params.min_tokens) == (0.1, 1.2, 3)
    assert (request.cache_salt, len(prompt_of(request))) == ("tenant", 4)
