"""Beam search of a real service, against a plain search over all logits and against transformers' generate.

Sums of log probabilities may differ in their last bits, so the prompts here are ones whose best beams have clearly
different scores.
"""

import itertools
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from service.running import Service

NEAR_TIE = 1e-4
SECONDS = 120
Scored = list[tuple[list[int], float]]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    result = AutoModelForCausalLM.from_pretrained(fetch("demo://", weights=True), dtype=torch.float32).eval()
    assert isinstance(result, PreTrainedModel)
    return result


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(fetch("demo://", weights=False))


def logprobs_of(model: PreTrainedModel, sequences: list[list[int]]) -> torch.Tensor:
    """Return those of the next token of each, which all have one length: [sequences, vocab_size]."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor(sequences)).logits[:, -1].double(), -1)


def plain_search(model: PreTrainedModel, prompt: list[int], width: int, max_tokens: int, eos: int) -> Scored:
    """Beam search as vLLM does it, with the whole model for each beam and step."""
    live: Scored = [([], 0.0)]
    complete: Scored = []
    for _ in range(max_tokens):
        following: Scored = []
        of_beams = logprobs_of(model, [prompt + tokens for tokens, _ in live])
        for (tokens, total), logprobs in zip(live, of_beams, strict=True):
            for token_id in logprobs.topk(2 * width).indices.tolist():
                one = ([*tokens, token_id], total + float(logprobs[token_id]))
                (complete if token_id == eos else following).append(one)
        live = sorted(following, key=lambda one: -one[1])[:width]
    lengths = [len(prompt) + len(tokens) - (tokens[-1] == eos) for tokens, _ in complete + live]
    scored = [(tokens, total / n) for (tokens, total), n in zip(complete + live, lengths, strict=True)]
    best = sorted(scored, key=lambda one: -one[1])[: width + 1]
    assert all(a[1] - b[1] > NEAR_TIE for a, b in itertools.pairwise(best)), "choose another prompt"
    return best[:width]


def ask(service: Service, path: str, **body: Any) -> list[dict[str, Any]]:
    body = {"use_beam_search": True, "return_token_ids": True, **body}
    answer = httpx.post(f"{service.url}/v1/{path}", json=body, timeout=SECONDS)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


@pytest.mark.parametrize("text", ["Kvasir is", "What does the operator do?", "Tokens"])
@pytest.mark.parametrize("width", [1, 4])
def test_completions_are_those_of_the_plain_search(
    service: Service, model: PreTrainedModel, tokenizer: Tokenizer, text: str, width: int
) -> None:
    prompt = tokenizer.encode(text, True)
    expected = plain_search(model, prompt, width, 16, eos_of(model))
    choices = ask(service, "completions", prompt=prompt, n=width, max_tokens=16, logprobs=0)
    assert [choice["token_ids"] for choice in choices] == [tokens for tokens, _ in expected]
    for choice, (tokens, score) in zip(choices, expected, strict=True):
        length = len(prompt) + len(tokens) - (tokens[-1] == eos_of(model))
        assert sum(choice["logprobs"]["token_logprobs"]) / length == pytest.approx(score, abs=1e-5)


def test_the_chat_answer_is_that_of_the_plain_search(service: Service, model: PreTrainedModel) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is Kvasir?"}], "max_tokens": 60}
    answer = httpx.post(
        f"{service.url}/v1/chat/completions",
        json={**body, "n": 3, "use_beam_search": True, "return_token_ids": True},
        timeout=SECONDS,
    ).json()
    expected = plain_search(model, answer["prompt_token_ids"], 3, 60, eos_of(model))
    assert [choice["token_ids"] for choice in answer["choices"]] == [tokens for tokens, _ in expected]
    assert "stop" in {choice["finish_reason"] for choice in answer["choices"]}


def test_beams_of_one_length_are_those_of_transformers(
    service: Service, model: PreTrainedModel, tokenizer: Tokenizer
) -> None:
    prompt = tokenizer.encode("A pod is", True)
    with torch.no_grad():
        found = model.generate(  # type: ignore[operator]
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),  # the padding token is in the prompt
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    choices = ask(service, "completions", prompt=prompt, n=4, max_tokens=20, ignore_eos=True)
    assert [choice["token_ids"] for choice in choices] == found[:, len(prompt) :].tolist()


def eos_of(model: PreTrainedModel) -> int:
    eos = model.generation_config.eos_token_id
    assert isinstance(eos, int)
    return eos
