import asyncio
from typing import Any

import pytest

from kvasir.frontend.generation.beam_generation import _Steps
from kvasir.link.protocol import Logprobs, RefusalKind
from kvasir.request.tokens import token_array
from runtime.frontend.harness import MODEL, Frontend, demo_model, running_frontend
from runtime.frontend.scripted import TIMEOUT, Script
from runtime.frontend.test_beam_search import next_logprobs, reference, top_of
from runtime.frontend.test_streaming import CHAT, COMPLETIONS, QUESTION
from runtime.link_messages import prompt_of

FIRST = 40
"""The made-up model's tokens 0 to 11 are the tokens from here on; the one with id 3 is the end of the sequence."""
PROMPT = [FIRST + 1, FIRST + 2]
BODY: dict[str, Any] = {"prompt": PROMPT, "use_beam_search": True, "max_tokens": 5, "return_token_ids": True}


def eos() -> int:
    return demo_model()[0].eos_token_ids[0]


def real(token_id: int) -> int:
    return eos() if token_id == 3 else FIRST + token_id


def made_up(token_ids: list[int], top: int) -> Logprobs:
    known = [3 if token_id == eos() else token_id - FIRST for token_id in token_ids]
    result = top_of(next_logprobs(known, 1), top)
    result.top_ids[0] = [real(token_id) for token_id in result.top_ids[0]]
    return result


def expected(width: int, max_tokens: int = 5, penalty: float = 1.0) -> list[list[int]]:
    found = reference(width, [1, 2], max_tokens, {3}, penalty, 1)
    return [[real(token_id) for token_id in tokens] for tokens, _ in found]


@pytest.fixture
def frontend(frontend: Frontend) -> Frontend:
    frontend.engine.script = Script(answer=[0], eos=eos(), next_logprobs=made_up)
    return frontend


@pytest.mark.parametrize("penalty", [1.0, 0.0, -2.0])
async def test_choices_are_the_best_beams_in_order(frontend: Frontend, penalty: float) -> None:
    async with frontend.http() as client:
        answer = (await client.post(COMPLETIONS, json=BODY | {"n": 4, "length_penalty": penalty})).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    tokens = [choice["token_ids"] for choice in answer["choices"]]
    assert tokens == expected(4, penalty=penalty)
    ends = [choice["finish_reason"] for choice in answer["choices"]]
    assert ends == ["stop" if each[-1] == eos() else "length" for each in tokens]
    _, tokenizer = demo_model()
    for choice in answer["choices"]:
        shown = [token_id for token_id in choice["token_ids"] if token_id != eos()]
        assert choice["text"] == tokenizer.decode(PROMPT + shown)[len(tokenizer.decode(PROMPT)) :]
        assert choice["stop_reason"] is None
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == sum(map(len, tokens))
    await frontend.idle()


async def test_each_step_asks_for_one_token_of_each_live_beam(frontend: Frontend) -> None:
    async with frontend.http() as client:
        await client.post(COMPLETIONS, json=BODY | {"n": 3, "max_tokens": 2, "ignore_eos": True, "seed": 7})
    requests = frontend.engine.seen.requests
    assert [len(prompt_of(request)) for request in requests] == [2, 3, 3, 3]
    assert {request.params.max_tokens for request in requests} == {1}
    assert {request.params.logprobs for request in requests} == {6}
    assert len({request.request_id for request in requests}) == 4


async def test_chat_has_tokens_and_log_probabilities_of_its_beams(frontend: Frontend) -> None:
    # The made-up model has no tokens of a chat's prompt, so it gets others.
    frontend.engine.script.next_logprobs = lambda token_ids, top: made_up([FIRST, FIRST + len(token_ids) % 7], top)
    body = {
        "messages": QUESTION,
        "use_beam_search": True,
        "n": 2,
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 2,
    }
    async with frontend.http() as client:
        answer = (await client.post(CHAT, json=body | {"return_token_ids": True})).json()
    for choice in answer["choices"]:
        content = choice["logprobs"]["content"]
        assert len(content) == len(choice["token_ids"])
        assert all(len(each["top_logprobs"]) == 2 for each in content)
        assert choice["message"]["role"] == "assistant"
    sums = [sum(each["logprob"] for each in choice["logprobs"]["content"]) for choice in answer["choices"]]
    assert sums == sorted(sums, reverse=True)


async def test_each_prompt_has_a_search_of_its_own(frontend: Frontend) -> None:
    async with frontend.http() as client:
        body = BODY | {"prompt": [PROMPT, [FIRST + 5]], "n": 2, "echo": True}
        answer = (await client.post(COMPLETIONS, json=body)).json()
    choices = answer["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPT, PROMPT, [FIRST + 5], [FIRST + 5]]
    assert [choice["token_ids"] for choice in choices[:2]] == expected(2)
    _, tokenizer = demo_model()
    assert all(choice["text"].startswith(tokenizer.decode([FIRST + 5])) for choice in choices[2:])
    assert answer["usage"]["prompt_tokens"] == 3


async def test_a_stop_token_ends_a_beam_and_is_named(frontend: Frontend) -> None:
    greedy = expected(1)[0]
    async with frontend.http() as client:
        body = BODY | {"n": 1, "stop_token_ids": [greedy[1]]}
        choice = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]
        with_text = (await client.post(COMPLETIONS, json=body | {"include_stop_str_in_output": True})).json()
    assert (choice["token_ids"], choice["stop_reason"], choice["finish_reason"]) == (greedy[:2], greedy[1], "stop")
    assert len(with_text["choices"][0]["text"]) > len(choice["text"])


REFUSED = [
    ({"stream": True}, "stream"),
    ({"stop": ["x"]}, "stop"),
    ({"min_tokens": 1}, "min_tokens"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"repetition_penalty": 1.5}, "repetition_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"bad_words": ["x"]}, "bad_words"),
    ({"allowed_token_ids": [5]}, "allowed_token_ids"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"best_of": 3}, "best_of"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"echo": True, "max_tokens": 0}, "echo"),
    ({"n": 11}, "n"),
    ({"n": 5, "stop_token_ids": [*range(20, 36)]}, "n"),
    ({"length_penalty": 10.5}, "length_penalty"),
    ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
]


@pytest.mark.parametrize(("more", "param"), REFUSED, ids=[f"{param} {more}" for more, param in REFUSED])
async def test_fields_that_beam_search_cannot_take_are_refused(
    frontend: Frontend, more: dict[str, Any], param: str
) -> None:
    async with frontend.http() as client:
        response = await client.post(COMPLETIONS, json=BODY | more)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert frontend.engine.seen.requests == []


async def test_fields_that_draw_tokens_have_no_effect(frontend: Frontend) -> None:
    drawn = {"temperature": 0.7, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 5, "stop": []}
    async with frontend.http() as client:
        plain = (await client.post(COMPLETIONS, json=BODY | {"n": 2})).json()
        other = (await client.post(COMPLETIONS, json=BODY | {"n": 2} | drawn)).json()
    assert plain["choices"] == other["choices"]


async def test_a_client_that_leaves_ends_the_search(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 0
    async with frontend.http() as client:
        task = asyncio.create_task(client.post(COMPLETIONS, json=BODY | {"n": 3, "max_tokens": 1000}))
        await asyncio.to_thread(frontend.engine.wait_requests, 1)
        task.cancel()
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()
    assert len(frontend.engine.seen.requests) == 1


@pytest.mark.parametrize("refusal", [None, RefusalKind.UNAVAILABLE, RefusalKind.OVERLOADED])
async def test_a_step_that_fails_or_finds_no_room_is_repeated(
    refusal: RefusalKind | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvasir.client.request_errors.OVERLOADED_RETRY_AFTER", 0.0)
    async with running_frontend(hold_timeout=0.0) as frontend, frontend.http() as client:
        script, seen = frontend.engine.script, frontend.engine.seen
        script.refusal = refusal

        def fail_once(token_ids: list[int], top: int) -> Logprobs:
            script.error = "it broke" if len(seen.requests) == 1 else ""
            return made_up(token_ids, top)

        script.next_logprobs = fail_once
        answer = (await client.post(COMPLETIONS, json=BODY | {"n": 1})).json()
    assert [choice["token_ids"] for choice in answer["choices"]] == expected(1)
    assert len(seen.requests) == 6


async def test_a_step_does_not_wait_for_the_rank_of_the_step_before(frontend: Frontend) -> None:
    llm = frontend.service.llm
    steps = _Steps(llm, "beam", llm.input.prepare([5]), 2)
    steps._rank = 7
    async with asyncio.timeout(TIMEOUT):
        await steps._next(token_array([5]))
    assert steps._rank == 0


async def test_a_step_that_fails_twice_fails_the_request(frontend: Frontend) -> None:
    script, seen = frontend.engine.script, frontend.engine.seen

    def fail_often(token_ids: list[int], top: int) -> Logprobs:
        script.error = "it broke"
        return made_up(token_ids, top)

    script.next_logprobs = fail_often
    async with frontend.http() as client:
        response = await client.post(COMPLETIONS, json=BODY | {"n": 1})
    assert response.status_code == 500
    assert len(seen.requests) == 3


async def test_an_error_of_the_first_step_is_the_answer(frontend: Frontend) -> None:
    frontend.engine.script.error, frontend.engine.script.refusal = "odd", RefusalKind.INVALID
    async with frontend.http() as client:
        response = await client.post(COMPLETIONS, json=BODY)
    assert response.status_code == 400
    await frontend.idle()


async def test_all_steps_go_to_one_engine(frontend: Frontend) -> None:
    other = await frontend.add_engine(frontend.engine.script)
    async with frontend.http() as client:
        for _ in range(4):
            before = [len(engine.seen.requests) for engine in frontend.engines]
            await client.post(COMPLETIONS, json=BODY | {"n": 3})
            after = [len(engine.seen.requests) for engine in frontend.engines]
            assert sum(b > a for a, b in zip(before, after, strict=True)) == 1
    assert other.seen.requests


async def test_openai_clients_can_ask_for_it(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        answer = await client.completions.create(
            model=MODEL, prompt=PROMPT, n=2, max_tokens=5, extra_body={"use_beam_search": True}
        )
    assert len(answer.choices) == 2
