"""Answers of a model to prompts that are computed in chunks, next to decodes of other requests."""

from pathlib import Path

from kvasir.request.params import SamplingParams
from runtime.worker.driver import Driver

PROMPTS = {"long": list(range(2, 70)), "short": list(range(50, 57)), "one": [9]}


def answers(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Return the tokens of each request, and the likeliest log probabilities. A step has at most 16 tokens."""
    driver = Driver.load(path)
    params = SamplingParams(max_tokens=6, seed=0, temperature=0.0, logprobs=5)
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt, params)
        driver.step(budget=16)
    tokens = driver.run(budget=16)
    return {
        name: (tokens[name], [value for entry in driver.done[name].logprobs for value in entry.token])
        for name in PROMPTS
    }
