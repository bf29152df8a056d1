"""read_adapter returns what changes the results, and refuses all other adapters in one line."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.hub.hub_errors import HubError
from kvasir.hub.safetensors_file import MAX_HEADER_BYTES, tensor_shapes_in
from runtime.hub.adapters.adapter_files import Q_PROJ, write_adapter

TWO = {"model.layers.0.self_attn.q_proj": (32, 32), "model.layers.0.mlp.down_proj": (64, 32)}


def change(path: Path, **fields: Any) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_an_adapters_modules_have_shape_and_scaling(tmp_path: Path) -> None:
    patterns: dict[str, Any] = {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"layers.0.self_attn.q_proj": 1}}
    info = read_adapter(str(write_adapter(tmp_path, TWO, **patterns)))
    q_proj, down_proj = (info.modules[name] for name in TWO)
    assert (q_proj.rank, q_proj.scaling, q_proj.inputs, q_proj.outputs) == (4, 0.25, 32, 32)
    assert (down_proj.rank, down_proj.scaling, down_proj.inputs, down_proj.outputs) == (2, 4.0, 64, 32)
    assert (info.rank, info.alpha, info.base_model) == (4, 8, "org/base")
    assert info.target_modules == ("down_proj", "q_proj")
    assert info.source == f"file://{tmp_path}"


def test_rslora_divides_by_the_root_of_the_rank(tmp_path: Path) -> None:
    info = read_adapter(str(write_adapter(tmp_path, use_rslora=True)))
    assert [module.scaling for module in info.modules.values()] == [8 / math.sqrt(4)]


def test_the_digest_covers_config_and_weights_alone(tmp_path: Path) -> None:
    first = read_adapter(str(write_adapter(tmp_path / "a"))).digest
    (write_adapter(tmp_path / "b") / "README.md").write_text("other")
    assert read_adapter(str(tmp_path / "b")).digest == first
    others = {read_adapter(str(write_adapter(tmp_path / "c", seed=1))).digest}
    others.add(read_adapter(str(write_adapter(tmp_path / "d", lora_alpha=9))).digest)
    assert len(others | {first}) == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias 'all'"),
        ({"use_dora": True}, "use_dora .* merge it"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"of_tomorrow": 3}, "of_tomorrow is not supported"),
        ({"r": 8}, r"lora_A \[4, 32\] and lora_B \[32, 4\], and the rank is 8"),
        ({"r": "8"}, "'8' is not a rank"),
        ({"rank_pattern": {"(": 8}}, "patterns cannot be read"),
        ({"rank_pattern": {"(?i)q_proj": 8}}, "patterns cannot be read"),
        ({"rank_pattern": {r"((\w|\.)+)+[!?]": 8}}, "repeats a group"),
        ({"alpha_pattern": {".*.*.*.*q_proj": 8}}, "more than 3"),
        ({"lora_alpha": 10**400}, "too large"),
    ],
)
def test_what_would_change_results_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    change(write_adapter(tmp_path), **fields)
    with pytest.raises(HubError, match=named) as refused:
        read_adapter(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_settings_of_the_training_are_accepted(tmp_path: Path) -> None:
    change(
        write_adapter(tmp_path),
        lora_dropout=0.1,
        target_modules="all-linear",
        layers_to_transform=[0],
        task_type="CAUSAL_LM",
        megatron_core="megatron.core",
        init_lora_weights="gaussian",
        loftq_config={},
        of_tomorrow=None,
    )
    assert read_adapter(str(tmp_path)).rank == 4


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        ("base_model.model.model.embed_tokens.lora_embedding_A", "embeddings are not adapted"),
        ("base_model.model.model.q_proj.lora_magnitude_vector.weight", "DoRA"),
        ("base_model.model.lm_head.weight", "only lora_A and lora_B"),
        ("base_model.model.model.other.lora_A.weight", r"lora_B \[\]"),
    ],
)
def test_tensors_beside_linear_layers_are_refused(tmp_path: Path, tensor: str, named: str) -> None:
    file = write_adapter(tmp_path) / "adapter_model.safetensors"
    save_file(load_file(file) | {tensor: np.zeros((4, 32), np.float32)}, file)
    with pytest.raises(HubError, match=named):
        read_adapter(str(tmp_path))


def test_a_rank_above_the_bound_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, TWO, rank_pattern={"down_proj": 9})
    with pytest.raises(HubError, match="has rank 9, and --max-lora-rank is 8"):
        read_adapter(str(tmp_path), max_rank=8)
    assert read_adapter(str(tmp_path), max_rank=9).rank == 9


def test_incomplete_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="does not exist"):
        read_adapter(str(tmp_path / "none"))
    with pytest.raises(HubError, match=r"has no adapter_config\.json"):
        read_adapter(str(tmp_path))
    weights = write_adapter(tmp_path, Q_PROJ) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(HubError, match="not a whole safetensors file"):
        read_adapter(str(tmp_path))
    weights.unlink()
    with pytest.raises(HubError, match=r"has no adapter_model\.safetensors"):
        read_adapter(str(tmp_path))
    with pytest.raises(HubError, match="does not hold a LoRA adapter"):
        read_adapter("demo://")


def test_a_long_header_of_a_remote_file_is_not_read() -> None:
    stream = io.BytesIO((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}")
    with pytest.raises(HubError, match="its header would be 100000001 bytes long"):
        tensor_shapes_in(stream, 2**40, Path("adapter_model.safetensors"))
