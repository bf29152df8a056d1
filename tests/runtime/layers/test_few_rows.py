import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import GemmaConfig, PreTrainedModel, Qwen3Config

from kvasir.layers import few_rows
from kvasir.layers.few_rows import FewRows
from runtime.models.tiny import MODELS, decoder, llama, save
from runtime.worker.driver import Driver, greedy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def qwen3() -> PreTrainedModel:
    return decoder(Qwen3Config, head_dim=16)


def gemma() -> PreTrainedModel:
    """A norm whose weight is a distance from 1, and another activation."""
    return decoder(GemmaConfig, head_dim=16)


def answer(path: Path) -> list[int]:
    driver = Driver.load(path, batch_invariant=False)
    driver.add("a", [3, 1, 4, 1, 5], greedy(5))
    return driver.run()["a"]


@pytest.mark.parametrize("model", [llama, qwen3, gemma])
def test_a_model_gives_the_tokens_of_plain_torch(
    model: Callable[[], PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(model(), tmp_path)
    expected, rows = answer(path), []
    add = FewRows.add_product_

    def noted(operations: FewRows, total: torch.Tensor, *rest: torch.Tensor) -> None:
        rows.append(len(total))
        add(operations, total, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FewRows, "add_product_", noted)
    monkeypatch.setattr(few_rows, "_KERNEL_DEVICE", "cpu")
    assert answer(path) == expected
    assert set(rows) == {1}, "prefills are products of torch"


def test_experts_are_not_computed_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(MODELS["qwen3-moe"](), tmp_path)
    expected = answer(path)
    monkeypatch.setattr(few_rows, "_KERNEL_DEVICE", "cpu")
    monkeypatch.setattr(FewRows, "add_product_", None)
    assert answer(path) == expected
