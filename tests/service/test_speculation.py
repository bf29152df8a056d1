"""Speculative decoding through the whole service: the same answers as without, and fewer steps."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from service.running import Service, running

QUESTION = "What is a KV cache?"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 30}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
COMPLETIONS: list[dict[str, Any]] = [
    {"temperature": 0, "ignore_eos": True, "max_tokens": 60, "return_token_ids": True},
    {"temperature": 1.3, "seed": 5, "n": 2, "max_tokens": 40, "logprobs": 3},
    {"temperature": 0, "max_tokens": 50, "presence_penalty": 0.5, "repetition_penalty": 1.1, "min_tokens": 20},
    {
        "temperature": 0.2,
        "seed": 1,
        "max_tokens": 60,
        "stop": [" gamma", "ta al"],
        "include_stop_str_in_output": True,
    },
    {"temperature": 0, "max_tokens": 60, "stop": ["s t", "zz"], "min_tokens": 7, "stream": True},
    {"temperature": 0.1, "seed": 3, "max_tokens": 1},
]
CHATS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 80, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0.7, "seed": 2, "n": 2, "max_tokens": 60, "stream": True},
    {"temperature": 0, "max_tokens": 60, "response_format": FORMAT},
    {"temperature": 1.0, "seed": 4, "max_tokens": 60, "response_format": FORMAT, "stream": True},
    {"temperature": 0.5, "seed": 9, "top_p": 0.8, "max_tokens": 50, "stop": ["nd values"]},
]


@pytest.fixture(scope="module")
def services() -> Iterator[list[Service]]:
    """A service without speculation, and one with."""
    common = ("serve", "demo://", "--port", "0", "--batch-invariant", "on")
    config = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}'
    with ExitStack() as stack:
        yield [
            stack.enter_context(running(*common)),
            stack.enter_context(running(*common, "--speculative-config", config)),
        ]


def choices_of(service: Service, path: str, body: dict[str, Any]) -> Any:
    """Return what does not depend on time and chunks."""
    if body.get("stream"):
        return streamed(service, path, body | {"stream_options": {"include_usage": True}})
    answer = httpx.post(f"{service.url}{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return [answer.json()["choices"], answer.json()["usage"]["completion_tokens"]]


def streamed(service: Service, path: str, body: dict[str, Any]) -> Any:
    texts: dict[int, str] = {}
    ends: dict[int, Any] = {}
    usage: dict[str, Any] = {}
    with httpx.stream("POST", f"{service.url}{path}", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            usage = event["usage"] or usage
            for choice in event["choices"]:
                index = choice["index"]
                assert index not in ends, "text after the end"
                texts[index] = texts.get(index, "") + (
                    choice.get("text") or choice.get("delta", {}).get("content") or ""
                )
                if choice["finish_reason"]:
                    ends[index] = choice["finish_reason"], choice.get("stop_reason")
    return [texts, ends, usage["completion_tokens"]]


def all_choices(service: Service, answer: str) -> list[Any]:
    """Ask a question again that has been answered: the answer is there to be copied."""
    question = {"role": "user", "content": QUESTION}
    messages = [question, {"role": "assistant", "content": answer}, question]
    prompt = QUESTION + answer + QUESTION
    asked = [("/v1/completions", {"prompt": prompt} | body) for body in COMPLETIONS]
    asked += [("/v1/chat/completions", {"messages": messages} | body) for body in CHATS]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda each: choices_of(service, *each), asked))


def test_speculation_changes_no_answer(services: list[Service]) -> None:
    plain, speculating = services
    answer = choices_of(
        plain, "/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    )[0][0]["message"]["content"]
    assert all_choices(plain, answer) == all_choices(speculating, answer)
    accepted = speculating.metric(speculating.url, "vllm:spec_decode_num_accepted_tokens_total")
    assert accepted > 100
    of_engine = speculating.engines()[0].ops
    assert speculating.metric(of_engine, "vllm:spec_decode_num_accepted_tokens_total") == accepted
    assert plain.metric(plain.url, "vllm:spec_decode_num_drafts_total") == 0
