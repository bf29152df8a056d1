"""A model in GGUF answers as the checkpoint that it was made from."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GraniteConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PhiConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from kvasir.hub.gguf.gguf_file import TYPES, GGUFTensor
from kvasir.hub.gguf.kept_layers import FORMATS
from kvasir.hub.model_info import ModelFiles, load_model_info
from kvasir.hub.source import fetch
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.packings.gguf_nibbles import IQ4_NL
from kvasir.layers.quantised.weight import QuantisedWeight
from kvasir.models.checkpoints.gguf_kept import kept_tensors
from kvasir.models.checkpoints.gguf_rows import Rows
from kvasir.models.load_model import load_model
from kvasir.parallel.parallel_state import ParallelState
from kvasir.request.params import SamplingParams
from runtime.gguf_files import write_gguf
from runtime.models.split_answers import numbers
from runtime.models.tiny import LLAMA3_ROPE, LONG_ROPE, MOE, YARN_ROPE, decoder, gpt2, llama, save
from runtime.parallel.thread_group import Meeting, ThreadGroup
from runtime.worker.driver import Driver, greedy

PROMPT = list(range(3, 33))
MODELS: Mapping[str, tuple[Callable[[], PreTrainedModel], dict[str, Any]]] = MappingProxyType(
    {
        "llama": (llama, {}),
        "llama-biases": (lambda: llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), {}),
        "llama-linear-rope": (
            lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}),
            {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
        ),
        "llama-3-rope": (lambda: llama(rope_parameters=LLAMA3_ROPE), {}),
        "llama-yarn": (
            lambda: llama(rope_parameters=YARN_ROPE),
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 64,
                "rope__scaling__yarn_beta_fast": 8.0,
            },
        ),
        "mixtral": (
            lambda: decoder(MixtralConfig, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
            {},
        ),
        "granite": (
            lambda: decoder(
                GraniteConfig,
                attention_multiplier=0.3,
                embedding_multiplier=2.0,
                logits_scaling=3.0,
                residual_multiplier=0.5,
            ),
            {"attention__scale": 0.3, "embedding_scale": 2.0, "logit_scale": 3.0, "residual_scale": 0.5},
        ),
        "smollm3": (lambda: decoder(SmolLM3Config, num_hidden_layers=5), {}),
        "olmo2": (lambda: decoder(Olmo2Config), {}),
        "qwen2": (lambda: decoder(Qwen2Config, tie_word_embeddings=True), {}),
        "qwen3": (lambda: decoder(Qwen3Config, head_dim=32), {}),
        "qwen3-moe": (lambda: decoder(Qwen3MoeConfig, **MOE, norm_topk_prob=True), {}),
        "gemma": (lambda: decoder(GemmaConfig, head_dim=32, num_key_value_heads=1), {}),
        "gemma2": (
            lambda: decoder(
                Gemma2Config,
                head_dim=24,
                sliding_window=21,
                query_pre_attn_scalar=24,
                attn_logit_softcapping=3.0,
                final_logit_softcapping=5.0,
            ),
            {
                "attention__sliding_window": 21,
                "attn_logit_softcapping": 3.0,
                "final_logit_softcapping": 5.0,
            },
        ),
        "gemma3": (
            lambda: decoder(
                Gemma3TextConfig,
                head_dim=32,
                sliding_window=17,
                num_hidden_layers=7,
                query_pre_attn_scalar=32,
                rope_parameters={
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            ),
            {
                "attention__sliding_window": 17,
                "rope__scaling__type": "linear",
                "rope__scaling__factor": 8.0,
            },
        ),
        "phi2": (lambda: decoder(PhiConfig, partial_rotary_factor=0.5, num_key_value_heads=4), {}),
        "phi3": (lambda: decoder(Phi3Config, sliding_window=30), {"attention__sliding_window": 30}),
        "phi3-long": (
            lambda: decoder(Phi3Config, original_max_position_embeddings=16, rope_parameters=LONG_ROPE),
            {
                "rope__scaling__original_context_length": 16,
                "rope__scaling__attn_factor": math.sqrt(1 + math.log(256 / 16) / math.log(16)),
            },
        ),
        "gpt2": (lambda: gpt2(tie_word_embeddings=False), {}),
    }
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def tokens(path: Path, **changes: Any) -> list[int]:
    driver = Driver.load(path, **changes)
    driver.add("r", PROMPT, greedy(12))
    return driver.run()["r"]


def served(file: Path) -> Path:
    return fetch(f"file://{file}", weights=True)


@pytest.mark.parametrize("name", list(MODELS))
def test_gguf_gives_the_tokens_of_its_origin(name: str, tmp_path: Path) -> None:
    build, keys = MODELS[name]
    model = build()
    expected = tokens(save(model, tmp_path / "origin"))
    assert tokens(served(write_gguf(tmp_path / "m.gguf", model, **keys))) == expected


def test_gguf_in_parts_gives_the_tokens_of_its_origin(tmp_path: Path) -> None:
    model = llama(attention_bias=True)
    expected = tokens(save(model, tmp_path / "origin"))
    write_gguf(tmp_path / "m.gguf", model, parts=10)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == 5
    assert served(parts[1]) == served(tmp_path)
    assert tokens(served(tmp_path)) == expected


@pytest.mark.parametrize("name", ["llama-biases", "qwen3-moe", "phi3", "gpt2"])
def test_a_rank_reads_its_part_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    model = MODELS[name][0]()
    paths = [save(model, tmp_path / "origin"), served(write_gguf(tmp_path / "m.gguf", model))]
    for rank in range(2):
        expected, found = (parameters(path, ParallelState(ThreadGroup(rank, Meeting(2)))) for path in paths)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)


def parameters(path: Path, parallel: ParallelState, quantization: str | None = None) -> dict[str, torch.Tensor]:
    info = load_model_info(path, ModelFiles(quantization=quantization))
    placement = Placement(torch.device("cpu"), torch.float32, parallel, scheme=info.weight_scheme)
    model = load_model(info, placement, 64, lambda done, total: None)
    assert isinstance(model, torch.nn.Module)
    return dict(model.named_parameters())


# where a block has its float16 numbers
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
}
KINDS = [name for name, _, _ in TYPES.values() if name.startswith(("Q", "IQ4", "BF", "F"))]


@pytest.mark.parametrize("kind", KINDS)
def test_gguf_type_is_dequantised_as_by_its_package(kind: str, tmp_path: Path) -> None:
    number = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[number]
    rows, columns = 6, 2 * max(block, 32)
    raw = random_blocks(number, rows * columns // block, block_bytes).reshape(rows, -1)
    tensor = GGUFTensor("x.weight", (rows, columns), kind, 0, raw.nbytes)
    order = np.array([3, 1, 2, 0, 5, 4])
    expected = torch.from_numpy(gguf.dequantize(raw, number))
    source = Rows(tensor, raw.reshape(-1))
    assert torch.equal(source.floats(slice(1, 4)).float(), expected[1:4])
    assert torch.equal(source.in_order(order).floats(slice(1, 6)).float(), expected[order[1:]])


def random_blocks(kind: gguf.GGMLQuantizationType, count: int, size: int) -> Any:
    """Bytes of blocks whose scales are small and finite."""
    random = np.random.default_rng(0)
    if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16):
        return gguf.quantize(random.standard_normal((count, 1), np.float32), kind).view(np.uint8)
    blocks = random.integers(0, 256, (count, size), np.uint8)
    scale = np.array([0.01], np.float16).view(np.uint8)
    for start in SCALES.get(kind.name, (0,)):
        blocks[:, start : start + 2] = scale
    return blocks


@pytest.mark.parametrize("kind", list(FORMATS))
def test_kept_gguf_type_stands_for_the_same_weights(kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[number]
    raw = random_blocks(number, 6 * 512 // block, block_bytes).reshape(6, -1)
    if kind == "Q4_K":
        raw[0, 4:16] = 0  # without scales and minima
    rows = Rows(GGUFTensor("x", (6, 512), kind, 0, raw.nbytes), raw.reshape(-1)).in_order(np.arange(6)[::-1].copy())
    parts = [tensor[slice(None), slice(None)] for tensor in kept_tensors("x", Path(), (6, 512), 0, rows)]
    zeros = parts[2] if len(parts) == 3 else None
    table = torch.tensor(IQ4_NL, dtype=torch.float32) if kind == "IQ4_NL" else None
    found = QuantisedWeight(parts[0], parts[1], zeros, table).dequantised(torch.float32)
    expected = torch.from_numpy(gguf.dequantize(raw, number)).flip(0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


KEPT: Mapping[str, tuple[Callable[[], PreTrainedModel], str]] = MappingProxyType(
    {
        "llama": (lambda: llama(intermediate_size=128), "Q8_0"),
        "llama-4-bits": (lambda: llama(intermediate_size=128, attention_bias=True), "Q4_1"),
        "qwen3-moe": (lambda: decoder(Qwen3MoeConfig, **MOE | {"moe_intermediate_size": 64}), "Q4_0"),
        "phi3": (lambda: decoder(Phi3Config, intermediate_size=128), "Q5_0"),
        "gpt2": (gpt2, "Q8_0"),
    }
)


@pytest.mark.parametrize("name", list(KEPT))
def test_kept_gguf_layers_give_the_logits_of_floats(name: str, tmp_path: Path) -> None:
    build, kind = KEPT[name]
    path = served(write_gguf(tmp_path / "m.gguf", build(), kind=gguf.GGMLQuantizationType[kind]))
    expected, found = logprobs(path, "none"), logprobs(path, None)
    assert torch.allclose(expected, found, atol=1e-3)
    parallel = ParallelState(ThreadGroup(1, Meeting(2)))
    if name != "gpt2":
        assert parameters(path, parallel).keys() < parameters(path, parallel, "none").keys()


def test_kept_gguf_parts_of_a_fused_layer_may_differ(tmp_path: Path) -> None:
    """Q4_K_M has v in another type than q and k."""
    Q4_1, Q8_0, F16 = (gguf.GGMLQuantizationType[kind] for kind in ("Q4_1", "Q8_0", "F16"))
    model = llama(intermediate_size=128, attention_bias=True)
    path = served(write_gguf(tmp_path / "m.gguf", model, kind=Q4_1, kinds={"attn_v": Q8_0, "ffn_up": F16}))
    assert torch.allclose(logprobs(path, "none"), logprobs(path, None), atol=1e-3)
    held = load_model_info(path).weight_scheme.config["kept"]
    assert {held[f"model.layers.0.self_attn.{name}"] for name in ("q_proj", "v_proj")} == {"Q4_1", "Q8_0"}


def written(folder: Path, kind: str) -> Path:
    number = gguf.GGMLQuantizationType[kind]
    return served(write_gguf(folder / f"{kind}.gguf", llama(intermediate_size=128), kind=number))


def test_quantization_chooses_how_gguf_is_held(tmp_path: Path) -> None:
    path = written(tmp_path, "Q4_1")
    for option, method in {None: "gguf", "gguf": "gguf", "none": "", "int8": "--quantization int8"}.items():
        scheme = load_model_info(path, ModelFiles(quantization=option)).weight_scheme
        assert scheme.method == method
        # a check in another process computes the scheme from the option
        assert load_model_info(path, ModelFiles(quantization=scheme.option or None)).weight_scheme == scheme
    floats = written(tmp_path, "F32")
    assert load_model_info(floats).weight_scheme.method == ""
    assert load_model_info(floats, ModelFiles(quantization="gguf")).weight_scheme.method == "gguf"


def test_log_advises_floats_to_a_device_without_kernels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        tokens(written(tmp_path, "Q4_1"), dtype="float16")
    assert "has no kernel for them; faster, with more memory: --quantization none" in caplog.text


def logprobs(path: Path, quantization: str | None) -> torch.Tensor:
    driver = Driver.load(path, files=ModelFiles(quantization=quantization))
    params = SamplingParams(max_tokens=1, seed=0, temperature=0.0, prompt_logprobs=20)
    driver.add("r", PROMPT, params)
    driver.run()
    entries = driver.done["r"].prompt_logprobs
    return torch.tensor([float(value) for entry in entries for value in numbers(entry)])
