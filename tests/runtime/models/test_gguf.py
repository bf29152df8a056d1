"""A model in GGUF answers as the checkpoint that it was made from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from kvasir.hub.source import fetch
from runtime.gguf_files import write_gguf
from runtime.models.tiny import MOE, decoder, gpt2, llama, save
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
