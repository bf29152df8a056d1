"""The sizes by config.json alone are those of an engine that has started."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.hub.model_info import ModelFiles, load_model_info
from kvasir.layers.kv import KVCacheConfig
from kvasir.worker.kv_memory.cache_memory import usable_blocks
from kvasir.worker.kv_memory.model_sizes import ModelSizes, model_sizes
from kvasir.worker.worker import Worker
from runtime.models.tiny import decoder, gpt2, save
from runtime.worker.driver import engine_settings

TOLERANCE = 0.03
CACHE: dict[str, Any] = {"load_format": "dummy", "kv_cache_memory_bytes": 2**25, "num_blocks": None}
# Large enough that the padding of a layer does not count.
LARGE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024}
TIED: dict[str, Any] = {"head_dim": 64, "tie_word_embeddings": True, **LARGE}
EXPERTS = {"head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
MODELS = {
    "llama": lambda: decoder(LlamaConfig, **LARGE),
    "tied": lambda: decoder(Qwen3Config, **TIED),
    "windows": lambda: decoder(Gemma3TextConfig, sliding_window=19, **TIED),
    "experts": lambda: decoder(Qwen3MoeConfig, **EXPERTS, **LARGE),
    "gpt2": lambda: gpt2(n_embd=256, vocab_size=1024),
}


def config_only(name: str, folder: Path) -> Path:
    save(MODELS[name](), folder)
    (folder / "model.safetensors").unlink()
    return folder


def tensors() -> dict[int, int]:
    """Return the bytes of all memory that tensors use, by address."""
    gc.collect()
    found = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    opaque = {id(each): each.nbytes for each in found if each.layout == torch._mkldnn}  # type: ignore[attr-defined]
    plain = [each.untyped_storage() for each in found if id(each) not in opaque and each.device.type == "cpu"]
    return opaque | {storage.data_ptr(): storage.nbytes() for storage in plain}


@pytest.mark.parametrize(
    ("name", "quantization", "changes"),
    [
        ("llama", None, {}),
        ("llama", "int4", {"dtype": "bfloat16"}),
        ("tied", None, {"dtype": "bfloat16", "batch_invariant": False}),
        ("tied", "int8", {}),
        ("tied", "fp8", {}),
        ("windows", None, {"block_size": 32}),
        ("experts", "int4", {}),
        ("gpt2", "int8", {}),
    ],
)
def test_sizes_are_those_of_a_started_engine(
    name: str, quantization: str | None, changes: dict[str, Any], tmp_path: Path
) -> None:
    info = load_model_info(config_only(name, tmp_path), ModelFiles(quantization=quantization))
    settings = engine_settings(**CACHE, **changes)
    sizes = model_sizes(info, settings)
    before = tensors()
    worker = Worker(settings, info)
    worker.load(lambda done, total: None)
    weights = sum(size for place, size in tensors().items() if place not in before)
    assert sizes.weight_bytes == pytest.approx(weights, rel=TOLERANCE)
    assert worker.kv_layout() == KVCacheConfig(sizes.groups, usable_blocks(settings, 2**25, sizes.groups))
    worker.close()


def test_a_split_model_has_a_part_on_each_rank(tmp_path: Path) -> None:
    info = load_model_info(config_only("llama", tmp_path))

    def of(ranks: int) -> ModelSizes:
        settings = engine_settings(device="cuda")
        return model_sizes(info, replace(settings, executor=ExecutorConfig(tensor_parallel_size=ranks)))

    assert of(2).weight_bytes == pytest.approx(of(1).weight_bytes / 2, rel=TOLERANCE)
    assert of(2).groups[0].spec.block.kv_heads == of(1).groups[0].spec.block.kv_heads // 2
