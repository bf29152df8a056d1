"""What ranks of a split model answer. Without transformers, whose import takes each process seconds."""

from collections.abc import Sequence
from pathlib import Path

from kvasir.hub.model_info import ModelFiles
from kvasir.link.protocol import Logprobs
from kvasir.parallel.parallel_state import ParallelState
from kvasir.request.params import SamplingParams
from runtime.worker.driver import Driver

PROMPTS = {"a": list(range(2, 40)), "b": list(range(50, 57)), "c": [9, 8, 7]}
TOKENS = 6

Answers = dict[str, tuple[list[int], list[float]]]
"""The tokens of each request, and log probabilities of the likeliest tokens in each place."""


def answers(path: Path, parallel: ParallelState, files: ModelFiles | None = None) -> Answers:
    """Three requests in chunks of 16 tokens, the third next to decodes of the others."""
    driver = Driver.load(path, parallel=parallel, files=files)
    params = SamplingParams(max_tokens=TOKENS, seed=0, temperature=0.0, logprobs=20, prompt_logprobs=20)
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt, params)
        driver.step(budget=16)
    tokens = driver.run(budget=16)
    scores = {
        name: [float(value) for entry in (*request.prompt_logprobs, *request.logprobs) for value in numbers(entry)]
        for name, request in driver.done.items()
    }
    return {name: (tokens[name], scores[name]) for name in PROMPTS}


def numbers(entry: Logprobs) -> list[float]:
    return [*entry.token, *(value for top in entry.top for value in top)]


def answers_of_all(state: ParallelState, folder: Path, names: Sequence[str], moe: str) -> dict[str, Answers]:
    whole_experts = ParallelState(state.tensor, expert_parallel=True)
    found = {name: answers(folder / name, state) for name in names}
    return {**found, "whole experts": answers(folder / moe, whole_experts)}
