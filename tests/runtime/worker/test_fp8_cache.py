"""Whole models over an fp8 KV cache, by the Triton kernels under Triton's interpreter."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config, PreTrainedModel

from kvasir.config.options import ConfigError
from kvasir.hub.model_info import load_model_info
from kvasir.kernels.triton.device_support import FP8
from kvasir.layers.attention import KVScales
from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.request.params import SamplingParams
from kvasir.worker.worker import Worker
from runtime.models.tiny import decoder, gpt2, llama, save
from runtime.worker.cpu_graphs import capture_on_cpu
from runtime.worker.driver import Driver, engine_settings

if TYPE_CHECKING:
    from kvasir.kernels.triton.paged_kernels import PagedKernels

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

LARGE = 1024.0
"""Factor of K and V: thousands, which an fp8 cache without scales would cut off at 448."""
SCALES = {"k_scale": 24.0, "v_scale": 40.0}
PROMPT = list(range(2, 62))


def gemma2() -> PreTrainedModel:
    """Capped scores, and two KV groups: one has a window."""
    return decoder(Gemma2Config, head_dim=16, sliding_window=12, attn_logit_softcapping=2.0)


MODELS = (llama, gemma2)


def with_large_kv(model: PreTrainedModel, path: Path, scales: dict[str, float]) -> Path:
    """Save a model that computes the same from larger K and V, and its scales."""
    path = save(model, path)
    file = path / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if any(part in name for part in ("k_proj", "v_proj")):
            tensors[name] = tensors[name] * LARGE
        if any(part in name for part in ("q_proj", "o_proj")):
            tensors[name] = tensors[name] / LARGE
    for layer in range(model.config.num_hidden_layers):
        for part, scale in scales.items():
            tensors[f"model.layers.{layer}.self_attn.{part}"] = torch.tensor(scale)
    save_file(tensors, file)
    return path


def logprobs(driver: Driver, budget: int) -> torch.Tensor:
    """[prompt] of each token of the prompt but the first, and of the next one, in chunks of `budget` tokens."""
    params = SamplingParams(max_tokens=1, seed=0, temperature=0.0, prompt_logprobs=0, logprobs=0)
    driver.add("r", PROMPT[:20] if budget == 1 else PROMPT, params)
    driver.run(budget=budget)
    done = driver.done["r"]
    return torch.tensor([value for entry in (*done.prompt_logprobs, *done.logprobs) for value in entry.token])


def round_plain_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round all numbers of a plain cache, after each step, to those that an fp8 cache with SCALES can hold."""

    def rounded(write: Callable[..., None]) -> Callable[..., None]:
        def write_rounded(self: "PagedKernels", *tensors: torch.Tensor, **scales: float) -> None:
            write(self, *tensors, **scales)
            for place, scale in enumerate(SCALES.values()):
                numbers = tensors[-1][:, place]
                numbers.copy_((numbers * (1 / scale)).clamp(-448, 448).to(FP8).float() * scale)

        return write_rounded

    from kvasir.kernels.triton.paged_kernels import PagedKernels  # imports triton

    for name in ("write", "rotate_and_write"):
        monkeypatch.setattr(PagedKernels, name, rounded(getattr(PagedKernels, name)))


@pytest.fixture
def nearest() -> Iterator[None]:
    from bench.gpu.checks.interpreted import rounding_to_nearest  # imports triton

    with rounding_to_nearest():
        yield


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch, nearest: None) -> None:
    """Contexts of more than 16 keys are split."""
    monkeypatch.setattr(choose_backend, "BACKENDS", (TritonBackend(device_type="cpu"),))
    monkeypatch.setattr("kvasir.kernels.triton.work_list.MIN_SEGMENT_KEYS", 16)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("budget", [1, 16, 64], ids=["decodes", "chunks", "prompt"])
@pytest.mark.parametrize("model", MODELS)
def test_log_probabilities_are_those_of_numbers_rounded_by_torch(
    model: Callable[[], PreTrainedModel], budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_large_kv(model(), tmp_path, SCALES)
    found = logprobs(Driver.load(path, fp8_kv_cache=True), budget)
    round_plain_caches(monkeypatch)
    expected = logprobs(Driver.load(path), budget)
    assert len(found) >= 20
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("model", MODELS)
def test_log_probabilities_are_near_those_of_a_plain_cache(
    model: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    path = with_large_kv(model(), tmp_path / "scales", SCALES)
    plain = logprobs(Driver.load(path), 16)
    error = (logprobs(Driver.load(path, fp8_kv_cache=True), 16) - plain).abs().mean()
    assert 0 < error < 0.3
    path = with_large_kv(model(), tmp_path / "none", {})
    error = (logprobs(Driver.load(path, fp8_kv_cache=True), 16) - plain).abs().mean()
    assert error > 1, "the bound above would hold if scales were ignored"


@pytest.mark.usefixtures("interpreted")
def test_gpt2_without_rotation_has_an_fp8_cache(tmp_path: Path) -> None:
    path = save(gpt2(), tmp_path)
    plain = logprobs(Driver.load(path), 16)
    error = (logprobs(Driver.load(path, fp8_kv_cache=True), 16) - plain).abs().mean()
    assert 0 < error < 0.3


@pytest.mark.usefixtures("nearest")
def test_replayed_steps_read_the_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_large_kv(llama(), tmp_path, SCALES)
    recorder = capture_on_cpu(monkeypatch)
    outputs = []
    for sizes in ((), (1,)):
        driver = Driver.load(path, fp8_kv_cache=True, graph_sizes=sizes)
        driver.add("r", PROMPT, SamplingParams(max_tokens=4, seed=0, temperature=0.0))
        outputs.append(driver.run()["r"])
    assert recorder.replays == [0] * 3, "the graph was not replayed"
    assert outputs[0] == outputs[1]


@pytest.mark.usefixtures("interpreted")
def test_twice_as_many_blocks_fit_as_of_bfloat16(tmp_path: Path) -> None:
    info = load_model_info(with_large_kv(llama(), tmp_path, SCALES))
    blocks = {}
    for fp8 in (False, True):
        worker = Worker(engine_settings(dtype="bfloat16", fp8_kv_cache=fp8), info)
        worker.load(lambda done, total: None)
        layout = worker.kv_layout()
        blocks[fp8] = layout.num_blocks + 1  # the null block
        assert {group.spec.block.dtype for group in layout.groups} == {"float8_e4m3fn" if fp8 else "bfloat16"}
    assert blocks[True] == 2 * blocks[False]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("head_dim", [24, 272])
def test_heads_that_the_kernels_do_not_support_are_rejected(head_dim: int, tmp_path: Path) -> None:
    path = save(llama(head_dim=head_dim), tmp_path)
    with pytest.raises(
        ConfigError, match=rf"--kv-cache-dtype fp8: no .* KV heads of {head_dim} numbers .* leave it"
    ):
        Driver.load(path, fp8_kv_cache=True)


def test_kernels_of_a_cpu_are_rejected(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype fp8: no attention kernel for cpu reads float8_e4m3fn"):
        Driver.load(path, fp8_kv_cache=True)


@pytest.mark.usefixtures("interpreted")
def test_random_weights_have_no_scales(tmp_path: Path) -> None:
    path = with_large_kv(llama(), tmp_path, SCALES)
    worker = Driver.load(path, fp8_kv_cache=True, load_format="dummy").worker
    assert isinstance(worker, Worker)
    assert worker._runner is not None
    assert {cache.scales for cache in worker._runner.caches} == {KVScales()}
