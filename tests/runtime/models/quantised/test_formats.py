import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvasir.config.options import ConfigError
from kvasir.hub.model_info import load_model_info
from kvasir.layers.parameter import Placement
from kvasir.models.check_ranks import check_ranks
from kvasir.models.load_model import load_model
from kvasir.models.model_load_error import ModelLoadError
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from runtime.models.quantised.checkpoints import LLAMA, MOE, PHI3, assert_alike, write, write_pair
from runtime.models.quantised.packers import (
    Pair,
    awq,
    compressed,
    fp8,
    fp8_blocks,
    gptq,
    int8,
    llm_int8,
    mxfp4,
    nf4,
    nvfp4,
)
from runtime.models.split_answers import answers
from runtime.parallel.thread_group import run_ranks
from runtime.worker.driver import Driver, greedy

Pack = Callable[[tuple[int, int]], Pair]


def group(kind: str, bits: int, strategy: str, **weights: Any) -> dict[str, Any]:
    """A config_group of compressed-tensors."""
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **weights}
    return {"targets": ["Linear"], "weights": weights, "input_activations": None}


def ct(form: str, *args: Any, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": group(*args, **weights)}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


def mx(shape: tuple[int, int]) -> Pair:
    numbers, exponents, floats = mxfp4(*shape)
    return {"weight_packed": numbers, "weight_scale": exponents}, floats


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
FORMATS: Mapping[str, tuple[dict[str, Any], Pack]] = {
    "fp8-tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, lambda shape: fp8(shape, ())),
    "fp8-block": (BLOCKS, lambda shape: fp8(shape, (shape[0] // 16, shape[1] // 16), "weight_scale_inv")),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, lambda shape: fp8(shape, (shape[0], 1))),
    "ct-fp8": (ct("float-quantized", "float", 8, "channel"), lambda shape: fp8(shape, (shape[0], 1))),
    "ct-int8": (ct("int-quantized", "int", 8, "channel"), lambda shape: int8(shape, (shape[0], 1))),
    "ct-int8-tensor": (ct("int-quantized", "int", 8, "tensor"), lambda shape: int8(shape, (1,))),
    "ct-w4": (ct("pack-quantized", "int", 4, "group", group_size=32), lambda shape: compressed(shape, 4, 32)),
    "ct-w4-zeros": (
        ct("pack-quantized", "int", 4, "group", group_size=16, symmetric=False),
        lambda shape: compressed(shape, 4, 16, zeros=True),
    ),
    "ct-w4-channel": (ct("pack-quantized", "int", 4, "channel"), lambda shape: compressed(shape, 4, shape[1])),
    "ct-w4-ordered": (
        ct("pack-quantized", "int", 4, "group", group_size=16, actorder="group"),
        lambda shape: compressed(shape, 4, 16, order=True),
    ),
    "ct-w8": (ct("pack-quantized", "int", 8, "group", group_size=32), lambda shape: compressed(shape, 8, 32)),
    "gptq": (GPTQ, lambda shape: gptq(shape, 4, 16)),
    "gptq-zeros": (GPTQ | {"sym": False}, lambda shape: gptq(shape, 4, 16, sym=False)),
    "gptq-v2": (
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
        lambda shape: gptq(shape, 4, 16, sym=False, offset=0),
    ),
    "gptq-ordered": (GPTQ | {"desc_act": True}, lambda shape: gptq(shape, 4, 16, order=True)),
    "gptq-8": (GPTQ | {"bits": 8, "group_size": -1}, lambda shape: gptq(shape, 8, shape[1])),
    "modelopt-fp8": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
        lambda s: fp8(s, ()),
    ),
    "modelopt-nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
        nvfp4,
    ),
    "ct-nvfp4": (
        ct("nvfp4-pack-quantized", "float", 4, "tensor_group", group_size=16),
        lambda shape: nvfp4(shape, compressed=True),
    ),
    "ct-mxfp4": (ct("mxfp4-pack-quantized", "float", 4, "group", group_size=32), mx),
    "bnb-nf4": (BNB, nf4),
    "bnb-nf4-nested": (BNB | {"bnb_4bit_use_double_quant": True}, lambda shape: nf4(shape, nested=True)),
    "bnb-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, llm_int8),
    "awq": (AWQ, lambda shape: awq(shape, 32)),
}
ORDERED = ("ct-w4-ordered", "gptq-ordered")
NOT_QUANTISED = ("lm_head", ".mlp.gate")


def pair(folder: Path, name: str, config: Mapping[str, Any] = LLAMA) -> tuple[Path, Path]:
    quantization, pack = FORMATS[name]
    quantised = lambda layer, shape: None if layer.endswith(NOT_QUANTISED) else pack(shape)  # noqa: E731
    return write_pair(folder, quantization, quantised, config)


@pytest.mark.parametrize("name", FORMATS)
def test_format_answers_as_its_floats_on_1_and_2_ranks(name: str, tmp_path: Path) -> None:
    path, floats = pair(tmp_path, name, {**LLAMA, "head_dim": 32})  # two ranks have whole groups of 64
    assert_alike(path, floats)
    if name not in ORDERED:
        run_ranks(2, lambda tensor: assert_alike(path, floats, ParallelState(tensor)))


@pytest.mark.parametrize("name", ["fp8-tensor", "fp8-block", "ct-w4-zeros", "gptq-ordered", "awq"])
def test_experts_answer_as_their_floats(name: str, tmp_path: Path) -> None:
    path, floats = pair(tmp_path, name, MOE)
    assert_alike(path, floats)
    if name not in ORDERED:
        run_ranks(2, lambda tensor: assert_alike(path, floats, ParallelState(tensor, expert_parallel=True)))


@pytest.mark.parametrize("name", ["fp8-tensor", "fp8-block", "ct-int8", "gptq-ordered", "awq", "bnb-nf4-nested"])
def test_a_fused_tensor_fills_all_its_parts(name: str, tmp_path: Path) -> None:
    assert_alike(*pair(tmp_path, name, PHI3))


@pytest.mark.parametrize("config", [{**LLAMA, "intermediate_size": 104}, {**MOE, "moe_intermediate_size": 40}])
def test_blocks_need_not_divide_a_layer(config: dict[str, Any], tmp_path: Path) -> None:
    pack = lambda name, shape: None if name.endswith(NOT_QUANTISED) else fp8_blocks(shape, 16)  # noqa: E731
    assert_alike(*write_pair(tmp_path, BLOCKS, pack, config))


def test_words_have_to_divide_a_layer(tmp_path: Path) -> None:
    config = {**LLAMA, "intermediate_size": 100}
    path, _ = write_pair(tmp_path, GPTQ, lambda name, shape: None, config)
    info = load_model_info(path)
    placement = Placement(torch.device("cpu"), torch.float32, scheme=info.weight_scheme)
    with pytest.raises(ConfigError, match=r"layers\.0\.mlp\.gate_up_proj has 200 outputs .* here, .* 208"):
        load_model(info, placement, 64, lambda done, total: None, "dummy")


@pytest.mark.parametrize("name", ["gptq-8", "bnb-nf4-nested", "ct-nvfp4"])
def test_quantised_dummy_weights_are_finite(name: str, tmp_path: Path) -> None:
    config = {**LLAMA, "quantization_config": FORMATS[name][0]}
    driver = Driver.load(write(tmp_path / "empty", config, {}), load_format="dummy")
    driver.add("r", [3, 4, 5], greedy(2))
    assert len(driver.run()["r"]) == 2


@pytest.mark.parametrize("name", ORDERED)
def test_inputs_in_the_order_of_activations_are_not_split(name: str, tmp_path: Path) -> None:
    path, _ = pair(tmp_path, name)
    with pytest.raises(ModelLoadError, match=r"--tensor-parallel-size 2: .*desc_act"):
        check_ranks(load_model_info(path), 64, 2, expert_parallel=False)


def test_a_group_is_not_split_between_ranks(tmp_path: Path) -> None:
    path, _ = pair(tmp_path, "ct-w4")
    with pytest.raises(ModelLoadError, match=r"--tensor-parallel-size 4: 4 ranks .* 64 in units of 32"):
        check_ranks(load_model_info(path), 64, 4, expert_parallel=False)


def test_ignored_layers_keep_their_floats(tmp_path: Path) -> None:
    config = FORMATS["ct-w4"][0] | {"ignore": ["re:.*self_attn.*", "model.layers.1.mlp.down_proj", "lm_head"]}
    plain = ("self_attn.", "layers.1.mlp.down_proj", "lm_head")
    pack = lambda name, shape: None if any(part in name for part in plain) else compressed(shape, 4, 32)  # noqa: E731
    assert_alike(*write_pair(tmp_path, config, pack))


@pytest.mark.parametrize("config", [{**LLAMA, "head_dim": 32}, MOE])
def test_parts_of_a_fused_layer_may_differ(config: dict[str, Any], tmp_path: Path) -> None:
    rules = {r"-:.*\.(k|gate)_proj": {}, r"+:.*\.v_proj": {"bits": 8}}

    def pack(name: str, shape: tuple[int, int]) -> Pair | None:
        if name.endswith((*NOT_QUANTISED, "k_proj", "gate_proj")):
            return None
        return gptq(shape, 8 if name.endswith("v_proj") else 4, 16)

    path, floats = write_pair(tmp_path, GPTQ | {"dynamic": rules}, pack, config)
    assert_alike(path, floats)
    run_ranks(2, lambda tensor: assert_alike(path, floats, ParallelState(tensor)))


def test_zero_biases_and_unused_orders_are_skipped(tmp_path: Path) -> None:
    path, floats = pair(tmp_path, "gptq")
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.bias"
    save_file(tensors | {name: torch.zeros(128)}, path / "model.safetensors")
    assert_alike(path, floats)
    save_file(tensors | {name: torch.ones(128)}, path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"{name}.* has no place"):
        answers(path, SINGLE)


def test_an_order_that_the_config_denies_is_refused(tmp_path: Path) -> None:
    path, _ = pair(tmp_path, "gptq-ordered")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["desc_act"] = False
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"g_idx.* has no place in this model"):
        answers(path, SINGLE)


def test_stacked_mxfp4_experts_answer_as_their_floats(tmp_path: Path) -> None:
    """The rows of gate and up alternate, as in gpt-oss."""
    draws = {}
    floats = {}
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        for name, shape in {"gate_up_proj": (4, 128, 64), "down_proj": (4, 64, 64)}.items():
            numbers, exponents, values = mxfp4(*shape)
            draws[f"{experts}.{name}_blocks"] = numbers.unflatten(2, (-1, 16))
            draws[f"{experts}.{name}_scales"] = exponents
            for expert, weight in enumerate(values):
                if name == "down_proj":
                    floats[f"{experts}.{expert}.down_proj.weight"] = weight
                else:
                    floats[f"{experts}.{expert}.gate_proj.weight"] = weight[0::2]
                    floats[f"{experts}.{expert}.up_proj.weight"] = weight[1::2]
    _, plain = write_pair(tmp_path, {}, lambda name, shape: None, MOE)
    others = {name: tensor for name, tensor in load_file(plain / "model.safetensors").items() if name not in floats}
    reference = write(tmp_path / "reference", MOE, others | {name: part.clone() for name, part in floats.items()})
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    path = write(tmp_path / "mxfp4", MOE | {"quantization_config": config}, others | draws)
    assert_alike(path, reference)
    run_ranks(2, lambda tensor: assert_alike(path, reference, ParallelState(tensor)))
    run_ranks(2, lambda tensor: assert_alike(path, reference, ParallelState(tensor, expert_parallel=True)))
