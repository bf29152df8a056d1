import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvasir import LLM, SamplingParams
from service.running import running
from weights.real_models import GEMMA3, SMOLLM2, RealModel

PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time", "1, 2, 3, 4,", "Water boils at"]
TOKENS = 24
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 40}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("model", [SMOLLM2, GEMMA3], ids=lambda model: model.name)
def test_greedy_tokens_equal_those_of_transformers(model: RealModel) -> None:
    folder, file = model.path.parent, model.path.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    reference = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    expected = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        generated = reference.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        expected.append(generated[0, ids.shape[1] :].tolist())
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    with LLM(str(model.path), dtype="float32", max_model_len=512) as llm:
        answers = llm.generate(PROMPTS, params, use_tqdm=False)
    found = [list(answer.outputs[0].token_ids) for answer in answers]
    ends = [tokens[-1:] == [tokenizer.eos_token_id] for tokens in expected]
    assert found == [tokens[:-1] if end else tokens for tokens, end in zip(expected, ends, strict=True)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Its chat template has no tools, so no format of calls is found in it."""
    options = ("--served-model-name", "smol", "--tool-call-parser", "hermes", "--port", "0")
    with running("serve", str(SMOLLM2.path), *options) as service:
        yield service.url


def chat(url: str, content: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "smol", "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def test_a_chat_stops_at_its_end(url: str) -> None:
    choice = chat(url, "What is the capital of France? Answer in one short sentence.", max_tokens=200)
    assert choice["finish_reason"] == "stop"
    assert "Paris" in choice["message"]["content"]
    assert "<|im_end|>" not in choice["message"]["content"]


def test_a_required_call_has_valid_arguments(url: str) -> None:
    forced: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    choice = chat(url, "How is the weather in Oslo?", max_tokens=200, **forced)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert list(json.loads(call["function"]["arguments"])) == ["city"]


def test_an_answer_follows_a_json_schema(url: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}, "country": {"enum": ["France", "Norway"]}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    choice = chat(url, "Describe Paris as JSON.", response_format=form, max_tokens=200)
    assert choice["finish_reason"] == "stop"
    assert set(json.loads(choice["message"]["content"])) == {"city", "country"}
