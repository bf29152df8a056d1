"""Checkpoints that their producers' own libraries pack: compressed-tensors and bitsandbytes.

`make test-producers` installs them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from runtime.models.quantised.checkpoints import LLAMA, assert_alike, write, write_pair

WIDE = {**LLAMA, "head_dim": 32}


def float_model(folder: Path) -> Path:
    return write_pair(folder, {}, lambda name, shape: None, WIDE)[1]


def linear_weights(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return ((name.removesuffix(".weight"), tensors[name]) for name in list(tensors) if "_proj.weight" in name)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("W8A16", {}),
        ("W4A16", {}),
        ("W4A16_ASYM", {}),
        ("W8A8", {}),
        ("FP8_DYNAMIC", {}),
        ("FP8_BLOCK", {"block_structure": [16, 16]}),
        ("NVFP4A16", {}),
        ("MXFP4A16", {}),
    ],
)
def test_compressed_tensors(preset: str, changes: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import compress_module, decompress_module, unpack_fp4_from_uint8
    from compressed_tensors.quantization import (
        QuantizationConfig,
        initialize_module_for_quantization,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(preset, ["Linear"])
    args = scheme.weights
    assert args is not None
    for name, value in changes.items():
        setattr(args, name, value)
    if args.group_size == 128:
        args.group_size = 32
    path = float_model(tmp_path)
    packed, floats = load_file(path / "model.safetensors"), load_file(path / "model.safetensors")
    for name, weight in linear_weights(packed):
        module = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        module.weight.data = weight.clone()
        initialize_module_for_quantization(module, scheme)
        shaped = weight
        if args.strategy in ("group", "tensor_group"):
            shaped = weight.unflatten(1, (-1, args.group_size))
        elif args.strategy == "block":
            rows, columns = args.block_structure
            shaped = weight.unfold(0, rows, rows).unfold(1, columns, columns).flatten(2)
        low, high = shaped.amin(-1), shaped.amax(-1)
        if args.strategy == "channel":
            low, high = low[:, None], high[:, None]
        whole = None
        if args.strategy == "tensor_group":
            whole = generate_gparam(weight.min()[None], weight.max()[None])
            module.weight_global_scale.data = whole
        scale, zero = calculate_qparams(low, high, args, global_scale=whole)
        module.weight_scale.data = scale
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data = zero
        compress_module(module)
        stored = {key: value.clone() for key, value in module.state_dict().items()}
        decompress_module(module)
        floats[f"{name}.weight"] = module.weight.data.float()
        if whole is not None:  # the library computes these floats in bfloat16
            numbers = unpack_fp4_from_uint8(stored["weight_packed"], *weight.shape, dtype=torch.float32)
            scales = stored["weight_scale"].float() / whole
            floats[f"{name}.weight"] = numbers * scales.repeat_interleave(args.group_size, 1)
        del packed[f"{name}.weight"]
        packed |= {f"{name}.{key}": value.contiguous() for key, value in stored.items()}
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]).model_dump(mode="json")
    written = WIDE | {"quantization_config": config}
    assert_alike(write(tmp_path / "produced", written, packed), write(tmp_path / "expected", WIDE, floats))


@pytest.mark.parametrize(("kind", "nested"), [("nf4", False), ("nf4", True), ("fp4", True)])
def test_bitsandbytes(kind: str, nested: bool, tmp_path: Path) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    path = float_model(tmp_path)
    packed, floats = load_file(path / "model.safetensors"), load_file(path / "model.safetensors")
    for name, weight in linear_weights(packed):
        stored, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=nested, blocksize=64)
        packed[f"{name}.weight"] = stored
        packed |= {f"{name}.weight.{key}": value.clone() for key, value in state.as_dict(packed=True).items()}
        floats[f"{name}.weight"] = functional.dequantize_4bit(stored, state)
    config = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    written = WIDE | {"quantization_config": {"quant_method": "bitsandbytes", **config}}
    assert_alike(write(tmp_path / "produced", written, packed), write(tmp_path / "expected", WIDE, floats))
