import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import pytest

from kvasir.client.async_llm import AsyncLLM
from kvasir.client.input.prompted import Prompted
from kvasir.client.live_request import Delta
from kvasir.client.request_errors import RequestFailed
from kvasir.client.request_observer import Trace
from kvasir.frontend.generation.generation import Generation
from kvasir.link.protocol import FinishReason
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore
from kvasir.request.tokens import token_array
from runtime.frontend.harness import ANSWER, MODEL, Frontend, running_frontend, script_for
from runtime.frontend.scripted import TIMEOUT, logprobs_of
from runtime.frontend.test_streaming import CHAT, COMPLETIONS, QUESTION, events_of
from runtime.link_messages import prompt_of

TEXTS = ["A pod.", "A group.", "Containers."]


def answer_by_seed(frontend: Frontend, first_seed: int) -> None:
    script = frontend.engine.script
    script.by_seed = {first_seed + index: script_for(text).answer for index, text in enumerate(TEXTS)}


async def test_chat_choices_have_own_seeds_and_the_prompt_counts_once(
    frontend: Frontend,
) -> None:
    answer_by_seed(frontend, 7)
    frontend.engine.script.cached = 2
    async with frontend.openai() as client:
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, n=3, seed=7)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == list(enumerate(TEXTS))
    requests = frontend.engine.seen.requests
    assert sorted(request.params.seed for request in requests) == [7, 8, 9]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt_of(requests[0]))
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    script = frontend.engine.script
    assert answer.usage.completion_tokens == sum(len(answer) + 1 for answer in script.by_seed.values())
    await frontend.idle()


async def test_choices_of_prompts_come_in_the_order_of_the_prompts(frontend: Frontend) -> None:
    async with frontend.http() as client:
        body = {"prompt": [[5], [6, 7]], "n": 2, "seed": 1, "return_token_ids": True}
        answer = (await client.post(COMPLETIONS, json=body)).json()
    prompts = [choice["prompt_token_ids"] for choice in answer["choices"]]
    assert prompts == [[5], [5], [6, 7], [6, 7]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3
    seeds = {(tuple(prompt_of(r)), r.params.seed) for r in frontend.engine.seen.requests}
    assert seeds == {((5,), 1), ((5,), 2), ((6, 7), 1), ((6, 7), 2)}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_holds_all_choices_each_whole(frontend: Frontend, path: str) -> None:
    answer_by_seed(frontend, 7)
    prompt = {"messages": QUESTION} if path == CHAT else {"prompt": "Hi"}
    events = await events_of(frontend, path, n=3, seed=7, max_tokens=50, **prompt)
    for index, text in enumerate(TEXTS):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        if path == CHAT:
            assert choices[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(choice["delta"].get("content", "") for choice in choices) == text
        else:
            assert "".join(choice["text"] for choice in choices) == text
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    await frontend.idle()


async def test_a_client_that_leaves_aborts_all_choices(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 2
    async with frontend.openai() as client:
        stream = await client.completions.create(model=MODEL, prompt="Hi", n=3, max_tokens=50, stream=True)
        async with aclosing(stream.response):
            await anext(aiter(stream))
    await asyncio.to_thread(frontend.engine.wait_aborts, 3)
    await frontend.idle()


async def test_best_of_answers_with_the_most_likely_per_token(frontend: Frontend) -> None:
    # Even tokens are likely, odd ones and the end are not, see scripted.logprobs_of.
    script = frontend.engine.script
    script.by_seed = {1: [21, 21, 21, 20], 2: [20, 20], 3: [21, 21, 20, 20, 20]}
    async with frontend.http() as client:
        body = {"prompt": "Hi", "seed": 1, "best_of": 3, "n": 2, "return_token_ids": True, "max_tokens": 50}
        answer = (await client.post(COMPLETIONS, json=body)).json()
    assert [choice["token_ids"][:-1] for choice in answer["choices"]] == [script.by_seed[2], script.by_seed[3]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    assert answer["usage"]["completion_tokens"] == sum(len(ids) + 1 for ids in script.by_seed.values())


async def test_best_of_as_many_as_are_answered_is_n(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        answer = await client.completions.create(model=MODEL, prompt="Hi", best_of=2, n=2, max_tokens=50)
    assert [choice.text for choice in answer.choices] == [ANSWER, ANSWER]
    assert {request.params.logprobs for request in frontend.engine.seen.requests} == {None}


async def test_too_many_choices_are_refused_by_name() -> None:
    async with running_frontend(max_live_requests=4) as frontend, frontend.http() as client:
        for path, body, param in (
            (CHAT, {"messages": QUESTION, "n": 5}, "n"),
            (COMPLETIONS, {"prompt": ["a", "b"], "n": 3}, "n"),
            (COMPLETIONS, {"prompt": "a", "best_of": 5}, "best_of"),
            (COMPLETIONS, {"prompt": ["a"] * 5}, "prompt"),
        ):
            response = await client.post(path, json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_prompt_is_scored_once_and_every_choice_tells_it(frontend: Frontend) -> None:
    body = {"prompt": [[20, 21, 22], [30, 31]], "n": 3, "seed": 5, "prompt_logprobs": 1, "max_tokens": 50}
    async with frontend.http() as client:
        choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    asked = [r for r in frontend.engine.seen.requests if r.params.prompt_logprobs is not None]
    assert sorted((prompt_of(r), r.params.seed) for r in asked) == [([20, 21, 22], 5), ([30, 31], 5)]
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [3, 3, 3, 2, 2, 2]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"] == choices[2]["prompt_logprobs"]
    await frontend.idle()


async def test_best_choices_have_prompt_scores_of_another_choice(
    frontend: Frontend,
) -> None:
    script = frontend.engine.script
    script.by_seed = {1: [21, 21], 2: [20, 20]}  # odd tokens are unlikely
    body = {"prompt": [20, 21], "seed": 1, "best_of": 2, "echo": True, "logprobs": 1, "return_token_ids": True}
    async with frontend.http() as client:
        (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    assert choice["token_ids"][:-1] == script.by_seed[2]
    assert choice["logprobs"]["token_logprobs"][:3] == [None, -8.5, -0.25]


class LateScores:
    """In place of AsyncLLM: the first choice comes when the others have had their first delta."""

    def __init__(self, others: int, error: str = "") -> None:
        self._waiting = others
        self._others_came = asyncio.Event()
        self._error = error

    async def generate(self, request_id: str, prompted: Prompted, trace: Trace) -> AsyncGenerator[Delta, None]:
        if prompted.params.prompt_logprobs is None:
            self._waiting -= 1
            if not self._waiting:
                self._others_came.set()
            yield Delta("a", [20])
        else:
            await self._others_came.wait()
            if self._error:
                raise RequestFailed(self._error)
            yield Delta("a", [20], prompt_logprobs=logprobs_of([21], 1))
        yield Delta("b", [22], FinishReason.LENGTH)


def three_choices(llm: LateScores) -> Generation:
    prompted = Prompted(token_array([20, 21]), RequestCore(SamplingParams(max_tokens=2, seed=0, prompt_logprobs=1)))
    return Generation(cast(AsyncLLM, llm), ("id", "unique"), [prompted], 3)


async def test_each_choice_begins_with_the_scores_of_the_prompt() -> None:
    first: dict[int, Delta] = {}
    async with asyncio.timeout(TIMEOUT), aclosing(three_choices(LateScores(2)).events()) as events:
        async for index, delta in events:
            first.setdefault(index, delta)
    assert [first[index].prompt_logprobs for index in range(3)] == [logprobs_of([21], 1)] * 3


async def test_choices_waiting_for_scores_end_with_their_choice() -> None:
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(RequestFailed, match="lost"):
            await three_choices(LateScores(2, error="lost")).choices(3)
