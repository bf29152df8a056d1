import importlib.util
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3MoeConfig

from kvasir.kernels.triton import device_support
from kvasir.kernels.triton.experts.expert_kernels import ExpertKernels
from kvasir.layers import linear_method
from kvasir.layers.activation import ACTIVATIONS, Activation
from kvasir.layers.moe import experts as experts_module
from kvasir.layers.moe.experts import Experts
from kvasir.layers.moe.sparse_moe import SparseMoE
from kvasir.layers.parameter import Placement
from kvasir.parallel.parallel_state import ParallelState
from runtime.layers.test_moe import CPU, EXPERTS, SIZE, build, random
from runtime.models.chunked_answers import answers
from runtime.models.tiny import MOE, decoder, save
from runtime.parallel.thread_group import ThreadGroup, run_grid, run_ranks


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers on a CPU use the Triton kernels, one after the other: the interpreter changes triton while it runs."""
    lock, compute, add = threading.Lock(), ExpertKernels.__call__, ExpertKernels.weighted_sum

    def locked_compute(kernels: ExpertKernels, *tensors: Any) -> Tensor:
        with lock:
            return compute(kernels, *tensors)

    def locked_add(kernels: ExpertKernels, *tensors: Tensor) -> Tensor:
        with lock:
            return add(kernels, *tensors)

    monkeypatch.setattr(ExpertKernels, "__call__", locked_compute)
    monkeypatch.setattr(ExpertKernels, "weighted_sum", locked_add)
    as_on_gpu(monkeypatch)


def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose kernels on a CPU, and plain weights, as on a GPU."""
    monkeypatch.setattr(experts_module, "_KERNEL_DEVICE", "cpu")
    monkeypatch.setattr(linear_method, "invariant_kernels", lambda placement: None)
    monkeypatch.setattr(linear_method, "_can_pack", lambda placement: False)


def plain(layer: SparseMoE, x: Tensor) -> Tensor:
    """Return the layer's output by plain torch."""
    kernels, layer.experts._kernels = layer.experts._kernels, None
    assert kernels is not None
    result: Tensor = layer(x)
    layer.experts._kernels = kernels
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("tokens", "top_k"), [(0, 2), (1, EXPERTS), (9, 2)])
@pytest.mark.usefixtures("interpreted")
@torch.inference_mode()
def test_a_layer_computes_what_plain_torch_does(tokens: int, top_k: int, dtype: torch.dtype) -> None:
    layer = build(ParallelState(), top_k, dtype)
    x = random(tokens, SIZE, seed=5).to(dtype)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(layer(x), plain(layer, x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.usefixtures("interpreted")
def test_ranks_with_parts_or_with_whole_experts_compute_as_one(experts: bool) -> None:
    x = random(6, SIZE, seed=5)
    with torch.inference_mode():
        whole = plain(build(ParallelState(), 3), x)

    def compute(group: ThreadGroup) -> Tensor:
        result: Tensor = build(ParallelState(group, expert_parallel=experts), 3)(x)
        return result

    for result in run_ranks(2, compute):
        torch.testing.assert_close(result, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("interpreted")
def test_engines_that_share_experts_compute_as_one() -> None:
    tokens = [random(4, SIZE, seed=1), random(0, SIZE, seed=2)]
    with torch.inference_mode():
        whole = build(ParallelState(), 2)
        expected = [plain(whole, x) for x in tokens]

    def compute(data: ThreadGroup, group: ThreadGroup) -> Tensor:
        result: Tensor = build(ParallelState(group, expert_parallel=True, data=data), 2)(tokens[data.rank])
        return result

    for engine, (result,) in enumerate(run_grid(2, 1, compute)):
        torch.testing.assert_close(result, expected[engine], rtol=1e-5, atol=1e-5)


def test_a_model_gives_the_tokens_of_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {**MOE, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2}
    path = save(decoder(Qwen3MoeConfig, **sizes, norm_topk_prob=True), tmp_path)
    expected = answers(path)
    launched = []
    compute = ExpertKernels._compute

    def noted(kernels: ExpertKernels, out: Tensor, *tensors: Any) -> None:
        launched.append(len(out))
        compute(kernels, out, *tensors)

    monkeypatch.setattr(ExpertKernels, "_compute", noted)
    as_on_gpu(monkeypatch)
    found = answers(path)
    assert {3, 16} <= set(launched), "decodes of three requests, and chunks"
    for request, (tokens, logprobs) in expected.items():
        assert found[request][0] == tokens
        assert torch.allclose(torch.tensor(found[request][1]), torch.tensor(logprobs), atol=2e-4)


@pytest.mark.parametrize(
    ("activation", "dtype", "supported"),
    [
        (F.silu, torch.bfloat16, True),
        (ACTIVATIONS["gelu_fast"], torch.float16, True),
        (F.gelu, torch.float32, True),
        (F.relu, torch.bfloat16, True),
        (torch.tanh, torch.bfloat16, False),
        (F.silu, torch.float64, False),
    ],
)
@pytest.mark.usefixtures("interpreted")
def test_known_activations_and_types_are_supported(
    activation: Activation, dtype: torch.dtype, supported: bool
) -> None:
    layer = Experts(SIZE, 8, activation, 4, Placement(CPU, dtype))
    assert (layer._kernels is not None) == supported


@pytest.mark.usefixtures("interpreted")
def test_a_rank_with_more_experts_than_bins_uses_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_module, "MAX_EXPERTS", 4)
    assert Experts(SIZE, 8, F.silu, 4, Placement(CPU, torch.float32))._kernels is not None
    assert Experts(SIZE, 8, F.silu, 5, Placement(CPU, torch.float32))._kernels is None


@pytest.mark.usefixtures("interpreted")
def test_without_triton_torch_computes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    device_support.can_compile.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert Experts(SIZE, 8, F.silu, 4, Placement(CPU, torch.float32))._kernels is None
    assert "the package triton is not installed" in caplog.text
    device_support.can_compile.cache_clear()


@pytest.mark.usefixtures("interpreted")
def test_one_line_names_the_devices_that_have_run_it(caplog: pytest.LogCaptureFixture) -> None:
    device_support._log_unproven.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            Experts(SIZE, 8, F.silu, 4, Placement(CPU, torch.float32))
    assert caplog.text.count("have been checked on") == 1
