import json
import logging
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config

from kvasir.models.model_load_error import ModelLoadError
from runtime.models.quantised.packers import fp8
from runtime.models.test_transformers_caches import MLA
from runtime.models.tiny import decoder, save
from runtime.worker.driver import Driver, greedy

BLOCKS = {"quant_method": "fp8", "weight_block_size": [48, 40]}  # the last block of a row is smaller


def pair(tmp_path: Path, quantization: dict[str, Any]) -> tuple[Path, Path]:
    floats, packed = save(decoder(DeepseekV3Config, **MLA), tmp_path / "floats"), tmp_path / "packed"
    plain = load_file(floats / "model.safetensors")
    stored = dict(plain)
    for name, tensor in plain.items():
        if name.endswith("_proj.weight"):
            rows, columns = tensor.shape
            whole = (-(-rows // 48) * 48, -(-columns // 40) * 40)
            blocks = (whole[0] // 48, whole[1] // 40) if "weight_block_size" in quantization else ()
            parts, values = fp8(whole, blocks, "weight_scale_inv")
            stored[name] = parts["weight"][:rows, :columns].contiguous()
            stored[f"{name}_scale_inv"] = parts["weight_scale_inv"]
            plain[name] = values[:rows, :columns].contiguous()
    save_file(plain, floats / "model.safetensors", {"format": "pt"})
    packed.mkdir()
    save_file(stored, packed / "model.safetensors")
    config = json.loads((floats / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return packed, floats


def answer(path: Path) -> list[int]:
    driver = Driver.load(path)
    driver.add("r", list(range(3, 40)), greedy(8))
    return driver.run()["r"]


@pytest.mark.parametrize("quantization", [BLOCKS, {"quant_method": "fp8"}])
def test_fp8_weights_answer_as_their_floats(
    quantization: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed, floats = pair(tmp_path, quantization)
    with caplog.at_level(logging.WARNING):
        assert answer(packed) == answer(floats)
    assert "fp8 become floats" in caplog.text


def test_a_weight_without_its_scale_is_refused(tmp_path: Path) -> None:
    packed, _ = pair(tmp_path, BLOCKS)
    tensors = load_file(packed / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight_scale_inv"]
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"no scale for model\.layers\.0\.mlp\.up_proj\.weight"):
        Driver.load(packed)


def test_other_quantised_weights_are_refused(tmp_path: Path) -> None:
    packed, _ = pair(tmp_path, BLOCKS)
    config = json.loads((packed / "config.json").read_text())
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32}
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": awq}))
    with pytest.raises(ModelLoadError, match=r"\(awq\) are for Kvasir's own architectures"):
        Driver.load(packed)
