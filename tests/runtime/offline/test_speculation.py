"""Speculation of a whole engine changes no byte: token ids, texts, log probabilities and reasons of the end."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kvasir import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from kvasir.engine import build
from kvasir.engine.engine_request import EngineRequest
from runtime.engine.oracle import Oracle

PROMPTS = [
    "What is Kvasir?",
    "Extract the person: Ada is 36 years old.",
    "the cat sat on the mat. the cat",
    "8 + 17",
]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2, "top_p": 0.9},
    {"repetition_penalty": 1.3, "top_k": 20},
    {"frequency_penalty": 0.6, "presence_penalty": -0.4, "logprobs": 0},
    {"logit_bias": {300: 4.0, 41: 3.0}, "min_tokens": 7},
    {"n": 2, "min_p": 0.05},
    {"stop": ["er", "a s"], "include_stop_str_in_output": True},
    {"stop": ["t", "\n"], "min_tokens": 5, "logprobs": 1},
    {"bad_words": ["the", "is a", "Kvasir"], "ignore_eos": True},
    {"structured_outputs": StructuredOutputsParams(json=SCHEMA)},
    {
        "structured_outputs": StructuredOutputsParams(regex="(yes|no|maybe)( [a-z]{1,4}){0,9}"),
        "frequency_penalty": 0.5,
    },
    {"stop_token_ids": [41, 300], "ignore_eos": True},
    {"prompt_logprobs": 1},
]
CONFIG = {"method": "ngram", "num_speculative_tokens": 5, "disable_by_batch_size": 12}


def asked() -> list[tuple[str, SamplingParams]]:
    number = random.Random(5)
    cases = itertools.product(PROMPTS, OPTIONS, (0.0, 0.7, 1.0, 2.0))
    return [
        (prompt, SamplingParams(temperature=temperature, seed=number.randrange(99), max_tokens=length, **options))
        for (prompt, options, temperature), length in zip(cases, itertools.cycle([7, 24, 33]), strict=False)
    ]


def oracle_of(outputs: Sequence[RequestOutput]) -> Oracle:
    known: dict[tuple[int, ...], list[list[int]]] = defaultdict(list)
    for output in outputs:
        known[tuple(output.prompt_token_ids or ())] += [list(each.token_ids) for each in output.outputs]

    def output_of(request: EngineRequest) -> list[int]:
        tokens = request.token_ids.tolist()
        prompt, emitted = tokens[: request.num_prompt_tokens], tokens[request.num_prompt_tokens :]
        return next((each for each in known[tuple(prompt)] if each[: len(emitted)] == emitted), [])

    return Oracle(output_of)


def answers(**options: Any) -> list[RequestOutput]:
    prompts, params = zip(*asked(), strict=True)
    with LLM("demo://", kv_cache_memory_bytes="64Mi", max_num_seqs=12, block_size=2, threads=1, **options) as llm:
        return llm.generate(list(prompts), list(params), use_tqdm=False)


def content(outputs: Sequence[RequestOutput]) -> Iterator[Any]:
    for output in outputs:
        of_each = [
            (each.text, each.token_ids, each.logprobs, each.finish_reason, each.stop_reason)
            for each in output.outputs
        ]
        yield output.prompt, of_each, output.prompt_logprobs


@pytest.fixture(scope="module")
def plain() -> list[RequestOutput]:
    return answers()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_scheduling": True},
        {"num_gpu_blocks_override": 50, "max_num_batched_tokens": 40},
    ],
    ids=["alone", "overlapped", "preempting"],
)
def test_speculation_changes_no_byte(
    plain: list[RequestOutput], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = oracle_of(plain)
    monkeypatch.setattr(build, "make_drafter", lambda speculation: oracle)
    outputs = answers(speculative_config=CONFIG, **options)
    for prompt, expected, found in zip(asked(), content(plain), content(outputs), strict=True):
        assert found == expected, prompt
    assert oracle.accepted[False] > 500
    assert oracle.accepted[True] > 50
    assert oracle.num_rejected > 300
    assert (oracle.num_preempted > 0) == ("num_gpu_blocks_override" in options)
