"""POST /v1/completions, not streamed."""

import asyncio

import pytest

from kvasir.link.protocol import FEATURE_PRIORITY
from kvasir.request.params import SamplingParams
from runtime.frontend.harness import ANSWER, MODEL, Frontend, demo_model, running_frontend
from runtime.link_messages import prompt_of


async def test_a_text_prompt_gets_the_whole_answer_with_its_usage(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        answer = await client.completions.create(model=MODEL, prompt="What is a pod?", max_tokens=100)
    prompt = prompt_of(frontend.engine.seen.requests[0])
    tokens = len(frontend.engine.script.answer) + 1
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.model == MODEL
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [(0, ANSWER, "stop")]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == tokens
    assert answer.usage.total_tokens == len(prompt) + tokens
    await frontend.idle()


async def test_max_tokens_ends_it_with_length_and_is_16_by_default(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        short = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=2)
        await client.completions.create(model=MODEL, prompt="Hi")
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 2
    assert frontend.engine.seen.requests[1].params.max_tokens == 16


async def test_default_of_16_tokens_shrinks_to_the_rest_of_the_context(frontend: Frontend) -> None:
    length = frontend.service.llm.max_model_len
    async with frontend.openai() as client:
        await client.completions.create(model=MODEL, prompt=[5] * (length - 3))
    assert frontend.engine.seen.requests[0].params.max_tokens == 3


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("one", 1), (["one", "two", "three"], 3), ([5, 6, 7], 1), ([[5, 6], [7]], 2)],
    ids=["text", "texts", "tokens", "lists of tokens"],
)
async def test_each_prompt_is_a_choice_with_its_own_index(
    frontend: Frontend, prompt: str | list[object], count: int
) -> None:
    async with frontend.http() as client:
        response = await client.post("/v1/completions", json={"prompt": prompt, "return_token_ids": True})
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(count))
    _, tokenizer = demo_model()
    texts = prompt if isinstance(prompt, list) and isinstance(prompt[0], (str, list)) else [prompt]
    expected = [tokenizer.encode(p, add_special_tokens=True) if isinstance(p, str) else p for p in texts]
    assert [choice["prompt_token_ids"] for choice in choices] == expected
    await frontend.idle()


async def test_token_ids_are_returned_on_request_only(frontend: Frontend) -> None:
    model, _ = demo_model()
    async with frontend.http() as client:
        plain = (await client.post("/v1/completions", json={"prompt": "Hi"})).json()["choices"][0]
        asked = (
            await client.post("/v1/completions", json={"prompt": [5], "max_tokens": 99, "return_token_ids": True})
        ).json()["choices"][0]
    assert "token_ids" not in plain
    assert "prompt_token_ids" not in plain
    assert asked["prompt_token_ids"] == [5]
    assert asked["token_ids"] == [*frontend.engine.script.answer, model.eos_token_ids[0]]


async def test_sampling_fields_reach_the_engine(frontend: Frontend) -> None:
    body = {
        "prompt": "Hi",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 11,
        "seed": 42,
        "stop_token_ids": [9, 10],
        "ignore_eos": True,
        "min_p": 0.05,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"11": -100, "12": 1.5},
        "allowed_token_ids": [11, 12, 13],
        "bad_words": ["pod"],
        "min_tokens": 2,
        "logprobs": 3,
        "prompt_logprobs": 1,
        "cache_salt": "tenant",
    }
    async with frontend.http() as client:
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    _, tokenizer = demo_model()
    request = frontend.engine.seen.requests[0]
    assert request.params == SamplingParams(
        max_tokens=7,
        seed=42,
        temperature=0.5,
        top_p=0.9,
        top_k=11,
        stop_token_ids=(9, 10),
        ignore_eos=True,
        min_p=0.05,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias=((11, -100.0), (12, 1.5)),
        allowed_token_ids=(11, 12, 13),
        bad_words=tuple(tuple(tokenizer.encode(word, add_special_tokens=False)) for word in ("pod", " pod")),
        min_tokens=2,
        logprobs=3,
        prompt_logprobs=1,
    )
    assert request.cache_salt == "tenant"


async def test_the_special_tokens_of_a_text_prompt_can_be_left_out(frontend: Frontend) -> None:
    async with frontend.http() as client:
        await client.post("/v1/completions", json={"prompt": "Hi", "add_special_tokens": False})
    _, tokenizer = demo_model()
    assert prompt_of(frontend.engine.seen.requests[0]) == tokenizer.encode("Hi", add_special_tokens=False)


async def test_model_defaults_to_the_first_name_and_alias_is_echoed(frontend: Frontend) -> None:
    async with frontend.http() as client:
        unnamed = (await client.post("/v1/completions", json={"prompt": "Hi"})).json()
        alias = (await client.post("/v1/completions", json={"prompt": "Hi", "model": "demo-alias"})).json()
    assert (unnamed["model"], alias["model"]) == (MODEL, "demo-alias")


async def test_prompts_are_aborted_when_one_of_them_finds_no_room() -> None:
    async with running_frontend(max_live_requests=2, max_client_share=1.0) as frontend, frontend.http() as client:
        frontend.engine.script.pause_at = 1
        waiting = asyncio.create_task(client.post("/v1/completions", json={"prompt": "first"}))
        await asyncio.to_thread(frontend.engine.wait_requests, 1)
        response = await client.post("/v1/completions", json={"prompt": ["second", "third"]})
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "too_many_requests"
        await asyncio.to_thread(frontend.engine.wait_aborts, 1)
        frontend.engine.resume()
        assert (await waiting).status_code == 200
        await frontend.idle()


async def test_prompts_over_the_token_limit_are_429_for_a_while() -> None:
    async with running_frontend(max_live_tokens=8) as frontend, frontend.http() as client:
        frontend.engine.script.pause_at = 1
        waiting = asyncio.create_task(client.post("/v1/completions", json={"prompt": [5] * 5}))
        await asyncio.to_thread(frontend.engine.wait_requests, 1)
        response = await client.post("/v1/completions", json={"prompt": [5] * 4})
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "too_many_requests"
        assert "--max-live-tokens" in response.json()["error"]["message"]
        frontend.engine.script.pause_at = None
        frontend.engine.resume()
        assert (await waiting).status_code == 200
        assert (await client.post("/v1/completions", json={"prompt": [5] * 4})).status_code == 200
        await frontend.idle()


async def test_a_prompt_can_be_cut_to_its_last_tokens(frontend: Frontend) -> None:
    context = frontend.service.llm.max_model_len
    async with frontend.http() as client:
        for prompt, keep in (([5, 6, 7, 8], 2), ([5] * (2 * context), -1), ("word " * 1000, 4)):
            body = {"prompt": prompt, "truncate_prompt_tokens": keep, "max_tokens": 5}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
    _, tokenizer = demo_model()
    first, second, third = (prompt_of(request) for request in frontend.engine.seen.requests)
    assert first == [7, 8]
    assert second == [5] * (context - 5)
    whole = tokenizer.encode("word " * 1000, add_special_tokens=True)
    assert third == [whole[0], *whole[-3:]]


async def test_client_may_choose_one_id_for_two_answers_at_a_time(frontend: Frontend) -> None:
    async with frontend.http() as client:
        body = {"prompt": "Hi", "request_id": "mine"}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(2)))
    assert [answer.json()["id"] for answer in answers] == ["cmpl-mine", "cmpl-mine"]
    assert len({request.request_id for request in frontend.engine.seen.requests}) == 2


async def test_a_priority_reaches_engines_that_schedule_by_it() -> None:
    async with running_frontend(engine=False) as frontend, frontend.http() as client:
        await frontend.add_engine(features=(FEATURE_PRIORITY,))
        assert (await client.post("/v1/completions", json={"prompt": "Hi", "priority": -3})).status_code == 200
        assert frontend.engine.seen.requests[0].priority == -3


async def test_special_tokens_are_text_where_that_is_asked_for(frontend: Frontend) -> None:
    model, tokenizer = demo_model()
    special = min(tokenizer.special_ids - set(model.eos_token_ids))
    frontend.engine.script.answer = [*frontend.engine.script.answer, special]
    name = str(tokenizer.backend.id_to_token(special))
    async with frontend.http() as client:
        for asked, text in (({}, ANSWER), ({"skip_special_tokens": False}, ANSWER + name)):
            body = {"prompt": "Hi", "max_tokens": 50, **asked}
            answer = (await client.post("/v1/completions", json=body)).json()
            assert answer["choices"][0]["text"] == text
