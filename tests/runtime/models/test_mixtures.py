"""Mixtures of experts agree with transformers token by token, on one rank and on several."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from kvasir.models.decoder import Decoder
from kvasir.worker.worker import Worker
from runtime.models.mixtures import MIXTURES
from runtime.models.tiny import save
from runtime.worker.driver import Driver, greedy
from runtime.worker.test_greedy import assert_greedy, prompts


@pytest.fixture(params=list(MIXTURES))
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    model = MIXTURES[request.param]()
    return model, save(model, tmp_path)


def test_mixture_computes_the_tokens_of_transformers(tiny: tuple[PreTrainedModel, Path]) -> None:
    """In chunks of 16 tokens, next to decodes, and resumed after a preemption."""
    model, path = tiny
    driver, batch = Driver.load(path), prompts([1, 9, 45, 70])
    assert isinstance(driver.worker, Worker)
    assert isinstance(driver.worker._model, Decoder)
    for index, prompt in enumerate(batch):
        driver.add(f"r{index}", prompt, greedy(12))
    for _ in range(5):
        driver.step(budget=16)
    driver.preempt("r1")
    outputs = driver.run(budget=16)
    for index, prompt in enumerate(batch):
        assert_greedy(model, prompt, outputs[f"r{index}"])
