"""The example of an attention backend gives the answers of the other backends."""

from pathlib import Path

import pytest
import torch

from examples.one_by_one_backend import OneByOneBackend, OneByOnePlan, OneByOnePlanner
from kvasir.layers.attention import StepRows
from kvasir.layers.attention_backends import choose_backend
from kvasir.params import SamplingParams
from runtime.models.tiny import MODELS, save
from runtime.worker.driver import Driver

PROMPTS = {"long": list(range(2, 70)), "short": list(range(50, 57)), "one": [9]}


def answers(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Chunks of 16 tokens next to decodes of other requests: tokens, and the likeliest log probabilities."""
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


@pytest.mark.parametrize("name", ["llama-gqa", "gemma2", "gemma3"])  # plain; capped scores; two KV groups
def test_a_model_gives_the_same_answers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(MODELS[name](), tmp_path)
    expected = answers(path)
    steps = []
    plan = OneByOnePlanner.plan

    def noted(planner: OneByOnePlanner, step: StepRows) -> OneByOnePlan:
        steps.append(step)
        return plan(planner, step)

    monkeypatch.setattr(OneByOnePlanner, "plan", noted)
    monkeypatch.setattr(choose_backend, "BACKENDS", (OneByOneBackend(), *choose_backend.BACKENDS))
    found = answers(path)
    assert steps, "another backend was used"
    for request, (tokens, logprobs) in expected.items():
        assert found[request][0] == tokens
        assert torch.allclose(torch.tensor(found[request][1]), torch.tensor(logprobs), atol=2e-4)
