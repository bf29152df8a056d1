"""Sampling fields through the whole service: HTTP, link, engine, sampler, and back."""

import math
from collections import Counter
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from service.running import Service

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is Kvasir?"}]
PROMPT = list(range(40, 72))


def client_of(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def complete(service: Service, **body: Any) -> dict[str, Any]:
    """The one choice of a greedy completion."""
    fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    answer = httpx.post(f"{service.url}/v1/completions", json=fields | body, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


def test_the_most_likely_token_is_the_greedy_one(service: Service) -> None:
    answer = client_of(service).chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=5
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    content = logprobs.content or []
    assert "".join(entry.token for entry in content[:-1]) == answer.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 5
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-3


def test_an_answer_scored_as_a_prompt_has_its_logprobs(service: Service) -> None:
    generated = complete(service, logprobs=1)
    whole = PROMPT + list(generated["token_ids"])
    scored = complete(service, prompt=whole, max_tokens=0, echo=True, logprobs=1)
    first, *others = scored["logprobs"]["token_logprobs"]
    assert first is None
    wanted = generated["logprobs"]["token_logprobs"]
    assert others[len(PROMPT) - 1 :] == pytest.approx(wanted, abs=2e-2)


def test_bias_bad_words_and_allowed_tokens_decide_what_can_come(service: Service) -> None:
    plain = list(complete(service)["token_ids"])
    assert complete(service, logit_bias={"300": 100})["token_ids"] == [300] * 12
    assert complete(service, logit_bias={str(plain[0]): -100})["token_ids"][0] != plain[0]
    allowed = [300, 301]
    assert set(complete(service, allowed_token_ids=allowed)["token_ids"]) <= set(allowed)
    text = str(ask(service).choices[0].message.content)
    word = next(word for word in text.split() if word.isalpha() and len(word) > 3)
    without = ask(service, extra_body={"bad_words": [word]})
    assert word not in str(without.choices[0].message.content).split()


def test_penalties_keep_tokens_from_coming_again(service: Service) -> None:
    body = {"logit_bias": {str(token_id): 50 for token_id in range(300, 324)}, "max_tokens": 96}

    def most_repeats(**penalty: float) -> int:
        return max(Counter(complete(service, **body, **penalty)["token_ids"]).values())

    free = most_repeats()
    assert free > 8
    assert most_repeats(frequency_penalty=2) < free / 2
    with_all = complete(service, **body | {"max_tokens": 24}, repetition_penalty=5)
    assert len(set(with_all["token_ids"])) == 24


def test_a_stop_string_cuts_the_answer_and_the_engine_is_idle(service: Service) -> None:
    text = str(ask(service).choices[0].message.content)
    stop = text[len(text) // 2 : len(text) // 2 + 5]
    wanted = text[: text.index(stop)]
    whole = ask(service, stop=stop)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (wanted, "stop")
    stream = ask(service, stop=[stop, "not in it"], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == wanted


def test_each_of_several_choices_follows_its_own_seed(service: Service) -> None:
    body = {"prompt": "Kvasir is", "temperature": 2, "max_tokens": 10, "ignore_eos": True}
    url = f"{service.url}/v1/completions"
    together = httpx.post(url, json={**body, "seed": 5, "n": 3}, timeout=60).json()["choices"]
    alone = [httpx.post(url, json={**body, "seed": 5 + i}, timeout=60).json()["choices"][0] for i in range(3)]
    assert [choice["text"] for choice in together] == [choice["text"] for choice in alone]
    assert len({choice["text"] for choice in together}) > 1


def ask(service: Service, **fields: Any) -> Any:
    """The answer of the OpenAI client, a completion or a stream of chunks."""
    return client_of(service).chat.completions.create(model="demo", messages=QUESTION, temperature=0, **fields)
