"""Each drafter guesses right, changes no token, and is counted."""

from collections.abc import Iterator
from typing import Any

from kvasir import LLM, Counter, SamplingParams, Vector

QUESTIONS = ("What is a KV cache?", "What is a pod?", "What is a prompt?")
SETTINGS: dict[str, Any] = {"kv_cache_memory_bytes": "64Mi", "max_num_seqs": 4, "threads": 1}


def answers(llm: LLM, conversations: list[list[dict[str, str]]]) -> list[str]:
    params = [SamplingParams(temperature=0.3, seed=number, max_tokens=60) for number in range(len(conversations))]
    return [output.outputs[0].text for output in llm.chat(conversations, params, use_tqdm=False)]


def asked_again(first: list[str]) -> Iterator[list[dict[str, str]]]:
    for text, answer in zip(QUESTIONS, first, strict=True):
        question = {"role": "user", "content": text}
        yield [question, {"role": "assistant", "content": answer}, question]


def test_drafters_change_no_answer_and_are_counted() -> None:
    once = [[{"role": "user", "content": text}] for text in QUESTIONS]
    with LLM("demo://", **SETTINGS) as llm:
        first = answers(llm, once)
        second = answers(llm, list(asked_again(first)))
    # n-grams are in the request itself, and the suffix drafter remembers the first answers
    for method, conversations, expected in (("ngram", list(asked_again(first)), second), ("suffix", once, first)):
        config = {"method": method, "num_speculative_tokens": 4}
        with LLM("demo://", speculative_config=config, disable_log_stats=False, **SETTINGS) as llm:
            answers(llm, once)
            before = accepted(llm)
            assert answers(llm, conversations) == expected
            assert accepted(llm) - before > 60, method


def accepted(llm: LLM) -> int:
    metrics = {metric.name.removeprefix("vllm:spec_decode_num_"): metric for metric in llm.get_metrics()}
    total, by_place = metrics["accepted_tokens"], metrics["accepted_tokens_per_pos"]
    assert isinstance(total, Counter)
    assert isinstance(by_place, Vector)
    assert sum(by_place.values) == total.value
    return total.value
