"""The fused operations of a GPU in whole models, under Triton's interpreter, and when they are chosen."""

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, PreTrainedModel

from kvasir.kernels import choose_operations
from kvasir.kernels.choose_operations import operations_for
from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton import device_support
from kvasir.kernels.triton.fused_kernels import TritonOperations
from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.gather_planner import GatherBackend
from runtime.models.chunked_answers import answers
from runtime.models.tiny import MODELS, decoder, llama, save

GPU = torch.device("cuda")
LAYERS = 3
"""Sizes of the tiny models."""


def gemma2() -> PreTrainedModel:
    return decoder(Gemma2Config, head_dim=16, sliding_window=12, attn_logit_softcapping=2.0)


class Counted(TritonOperations):
    calls: ClassVar[Counter[str]] = Counter()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        self.calls["norm"] += 1
        return super().rms_norm(x, weight, eps, shift)

    def rms_norm_(self, x: Tensor, weight: Tensor, eps: float, shift: float) -> None:
        self.calls["norm in place"] += 1
        super().rms_norm_(x, weight, eps, shift)

    def add_rms_norm_(self, x: Tensor, added: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        self.calls["add and norm"] += 1
        return super().add_rms_norm_(x, added, weight, eps, shift)

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        self.calls["gate"] += 1
        return super().gate(x, activation)

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        self.calls["rotate"] += 1
        super().rotate_(x, cos, sin)


@pytest.mark.parametrize(
    ("model", "of_a_step"),
    [
        (llama, {"norm": 1, "add and norm": 2 * LAYERS, "gate": LAYERS, "rotate": LAYERS}),
        (gemma2, {"norm": 1 + 2 * LAYERS, "add and norm": 2 * LAYERS, "gate": LAYERS, "rotate": LAYERS}),
        (
            MODELS["qwen3"],
            {"norm": 1, "norm in place": 2 * LAYERS, "add and norm": 2 * LAYERS, "gate": LAYERS, "rotate": LAYERS},
        ),
        (MODELS["phi"], {"rotate": LAYERS}),  # LayerNorm, and an MLP without a gate; half of a head is rotated
    ],
    ids=["llama", "gemma2", "qwen3", "phi"],
)
def test_a_model_gives_the_tokens_of_plain_torch(
    model: Callable[[], PreTrainedModel],
    of_a_step: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = save(model(), tmp_path)
    monkeypatch.setattr(choose_operations, "kernels_for", lambda device, dtype: None)
    monkeypatch.setattr(choose_backend, "BACKENDS", (GatherBackend(),))
    expected = answers(path)
    monkeypatch.setattr(choose_operations, "kernels_for", Counted)
    monkeypatch.setattr(Counted, "calls", Counter())
    found = answers(path)
    for request, (tokens, logprobs) in expected.items():
        assert found[request][0] == tokens
        assert torch.allclose(torch.tensor(found[request][1]), torch.tensor(logprobs), atol=2e-4)
    steps = Counted.calls["rotate"] // LAYERS
    assert steps > 0
    assert Counted.calls == {name: count * steps for name, count in of_a_step.items()}


@pytest.fixture
def with_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_support, "_has_compiler", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("kvasir.kernels.triton.fused_kernels.warp_size", lambda device: 32)
    _forget()
    yield
    _forget()


def _forget() -> None:
    device_support.can_compile.cache_clear()
    choose_operations._on_gpu.cache_clear()


@pytest.mark.usefixtures("with_compiler")
def test_a_gpu_has_operations_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    device_support._log_unproven.cache_clear()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert isinstance(operations_for(GPU, dtype), TritonOperations)
    assert operations_for(GPU, torch.float64) is None
    assert operations_for(torch.device("meta"), torch.float32) is None
    assert caplog.text.count("have been checked on") == 1


@pytest.mark.usefixtures("with_compiler")
def test_without_triton_or_a_compiler_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_support, "_has_compiler", lambda: False)
    assert operations_for(GPU, torch.bfloat16) is None
    assert "C compiler" in caplog.text
    _forget()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert operations_for(GPU, torch.bfloat16) is None
    assert "the package triton is not installed" in caplog.text
