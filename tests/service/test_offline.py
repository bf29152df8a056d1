from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvasir import LLM, CompletionOutput, SamplingParams
from service.running import Service

PROMPTS = ("Kvasir is", "What is Kvasir?", "An engine", "The operator watches")
MESSAGES = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is Kvasir?"},
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo://", kv_cache_memory_bytes="64Mi") as llm:
        yield llm


def ask(service: Service, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{service.url}/v1/{path}", json=body | {"return_token_ids": True}, timeout=60)
    answer.raise_for_status()
    return answer.json()  # type: ignore[no-any-return]


def facts(output: CompletionOutput) -> dict[str, Any]:
    return {name: getattr(output, name) for name in ("text", "token_ids", "finish_reason", "stop_reason")}


FIELDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.3, "seed": 11, "top_p": 0.9, "n": 3},
    {"temperature": 0, "stop": ["operator", "an engine", "a"], "min_tokens": 4},
    {"temperature": 0, "stop": "service", "include_stop_str_in_output": True},
    {"temperature": 1.0, "seed": 2, "frequency_penalty": 1.0, "bad_words": ["Kubernetes"], "min_p": 0.05},
    {"max_tokens": 400},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_generate_gives_the_answers_of_the_completions_api(
    service: Service, llm: LLM, fields: dict[str, Any]
) -> None:
    fields = {"seed": 5, "max_tokens": 40} | fields
    outputs = llm.generate(PROMPTS, SamplingParams(**fields))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        answer = ask(service, "completions", prompt=prompt, **fields)
        choices = [{name: choice[name] for name in facts(output.outputs[0])} for choice in answer["choices"]]
        assert [facts(each) for each in output.outputs] == choices
        assert output.prompt_token_ids == answer["choices"][0]["prompt_token_ids"]


def test_log_probabilities_are_those_of_the_completions_api(service: Service, llm: LLM) -> None:
    fields: dict[str, Any] = {"seed": 5, "temperature": 1.0, "max_tokens": 12, "logprobs": 3, "prompt_logprobs": 2}
    [output] = llm.generate(PROMPTS[0], SamplingParams(**fields))
    [choice] = ask(service, "completions", prompt=PROMPTS[0], **fields)["choices"]
    [mine] = output.outputs
    assert mine.logprobs is not None
    own = [place[token].logprob for place, token in zip(mine.logprobs, mine.token_ids, strict=True)]
    assert own == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-3)
    for place, likely in zip(mine.logprobs, choice["logprobs"]["top_logprobs"], strict=True):
        assert {entry.decoded_token: entry.logprob for entry in place.values()} == pytest.approx(likely, abs=1e-3)
    assert output.prompt_logprobs is not None
    for scored, answered in zip(output.prompt_logprobs, choice["prompt_logprobs"], strict=True):
        assert (scored is None) == (answered is None)
        mine_by_id = {str(token): entry.logprob for token, entry in (scored or {}).items()}
        theirs = {token: entry["logprob"] for token, entry in (answered or {}).items()}
        assert mine_by_id == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chat_template_kwargs": {"anything": 1}},
        {"continue_final_message": True},
        {"add_generation_prompt": False},
    ],
    ids=str,
)
def test_chat_gives_the_answers_of_the_chat_api(service: Service, llm: LLM, options: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "stop": ["an operator"]}
    conversations = [MESSAGES, MESSAGES[1:], [*MESSAGES, {"role": "assistant", "content": "Kvasir"}]]
    outputs = llm.chat(conversations, SamplingParams(**fields), **options)
    assert llm.chat(MESSAGES, SamplingParams(**fields), **options)[0].outputs == outputs[0].outputs
    for messages, output in zip(conversations, outputs, strict=True):
        answer = ask(service, "chat/completions", messages=messages, **fields, **options)
        [choice] = answer["choices"]
        [mine] = output.outputs
        assert facts(mine) == {"text": choice["message"]["content"]} | {
            name: choice[name] for name in ("token_ids", "finish_reason", "stop_reason")
        }
        assert output.prompt_token_ids == answer["prompt_token_ids"]
