from pathlib import Path

import pytest
import torch

from examples.one_by_one_backend import OneByOneBackend, OneByOnePlan, OneByOnePlanner
from kvasir.layers.attention import StepRows
from kvasir.layers.attention_backends import choose_backend
from runtime.models.chunked_answers import answers
from runtime.models.tiny import MODELS, save


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
