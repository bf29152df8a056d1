"""Writes adapters as PEFT saves them, with random numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Shapes = Mapping[str, tuple[int, int]]  # (inputs, outputs) by module

Q_PROJ = {"model.layers.0.self_attn.q_proj": (32, 32)}


def write_adapter(
    path: Path, shapes: Shapes = Q_PROJ, *, rank: int = 4, seed: int = 0, scale: float = 0.3, **config: Any
) -> Path:
    """Return the directory. A module's rank is that of `rank_pattern` by its last part, or `rank`."""
    numbers = np.random.default_rng(seed)
    tensors = {}
    for module, (inputs, outputs) in shapes.items():
        own = config.get("rank_pattern", {}).get(module.rpartition(".")[2], rank)
        for part, shape in (("A", (own, inputs)), ("B", (outputs, own))):
            values = scale * numbers.standard_normal(shape)
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = values.astype(np.float32)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors")
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "base_model_name_or_path": "org/base",
        **config,
    }
    (path / "adapter_config.json").write_text(json.dumps(fields))
    return path
