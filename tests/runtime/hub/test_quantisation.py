from typing import Any

import pytest

from kvasir.hub.hub_errors import HubError
from kvasir.hub.quantisation.layer_formats import (
    AWQ,
    GPTQ,
    BitsAndBytes4,
    LayerFormat,
    MXFP4Experts,
    Numbers,
    PackedNumbers,
)
from kvasir.hub.quantisation.layer_names import Layer, LayerNames
from kvasir.hub.weight_scheme import UNQUANTISED, chosen_scheme, read_scheme

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
PACKED = {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"}
CT = {"quant_method": "compressed-tensors", "config_groups": {"group_0": PACKED}}
GPTQ4 = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AUTO_ROUND = GPTQ4 | {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}


def format_of(config: dict[str, Any], name: str) -> LayerFormat | None:
    formats = read_scheme(config).formats
    assert formats is not None
    return formats.format_of(Layer((name,)))


@pytest.mark.parametrize(
    ("entry", "held"),
    [
        ("model.layers.0.mlp.gate", True),
        ("layers.0.mlp.gate", True),
        ("gate", True),
        ("model.layers.0", True),
        ("re:.*gate$", True),
        (r"re:model\.language_model\..*", True),
        ("model.layers.0.*", True),
        ("*.mlp.gate", True),
        ("model.layers.0.ml", False),
        ("ate", False),
        ("re:gate", False),
        ("model.layers.*.self_attn", False),
    ],
)
def test_names_hold_a_layer(entry: str, held: bool) -> None:
    assert LayerNames.of([entry]).holds(Layer(("layers.0.mlp.gate",))) is held


def test_a_named_target_comes_before_the_class() -> None:
    int8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
    other = {"targets": ["re:.*down_proj$"], "weights": int8, "format": "int-quantized"}
    config = CT | {"config_groups": {"a": PACKED, "b": other}, "ignore": ["lm_head", "re:.*o_proj"]}
    assert format_of(config, "layers.3.mlp.down_proj") == Numbers("int8", "channel")
    assert format_of(config, "layers.3.mlp.up_proj") == PackedNumbers(4, 128, symmetric=True)
    assert format_of(config, "lm_head") is None
    assert format_of(config, "layers.3.self_attn.o_proj") is None


def test_the_first_dynamic_regex_of_gptq_decides() -> None:
    rules = {
        r"-:model\.layers\.0\.": {},
        r"+:.*\.down_proj": {"bits": 8},
        r".*\.(down|up)_proj": {"group_size": 32},
    }
    config = GPTQ4 | {"dynamic": rules}
    assert format_of(config, "layers.0.mlp.down_proj") is None
    assert format_of(config, "layers.1.mlp.down_proj") == GPTQ(8, 128, 1, desc_act=False)
    assert format_of(config, "layers.1.mlp.up_proj") == GPTQ(4, 32, 1, desc_act=False)
    assert format_of(config, "layers.1.mlp.gate_proj") == GPTQ(4, 128, 1, desc_act=False)
    assert format_of(config, "lm_head") is None
    assert format_of(config | {"lm_head": True}, "lm_head") is not None


def test_modules_of_a_block_limit_gptq() -> None:
    config = GPTQ4 | {"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.up_proj"]]}
    assert format_of(config, "layers.1.mlp.up_proj") is not None
    assert format_of(config, "layers.1.mlp.down_proj") is None


def test_older_bitsandbytes_configs_name_no_method() -> None:
    assert format_of({"load_in_4bit": True}, "layers.0.mlp.up_proj") == BitsAndBytes4(64)


def test_gguf_is_known_for_a_checkpoint_of_floats() -> None:
    with pytest.raises(HubError, match="--quantization gguf: the weights of this checkpoint are not quantised"):
        chosen_scheme("gguf", UNQUANTISED)


def test_awq_reads_its_older_names() -> None:
    assert format_of({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "layers.0.mlp.up_proj") == AWQ(64)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "quanto"}, "quant_method is 'quanto', and the supported ones are auto-round, "),
        (GPTQ4 | {"bits": 3}, "gptq weights: bits is 3 and must be one of 4, 8"),
        (GPTQ4 | {"checkpoint_format": "marlin"}, "gptq weights: checkpoint_format is 'marlin' and must be"),
        (GPTQ4 | {"group_size": 0}, "gptq weights: group_size is 0 and must be a number of weights above 0"),
        (GPTQ4 | {"bits": 8, "sym": False}, "gptq weights: sym is False and must be one of True"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMV"}, "awq weights: version is 'gemv'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "fp8 weights: weight_block_size is .* two sizes"),
        (CT | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config .* must be empty"),
        (CT | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config .* must be empty"),
        (
            CT | {"config_groups": {"a": PACKED | {"format": "marlin-24"}}},
            "format is 'marlin-24' and must be one of",
        ),
        (CT | {"config_groups": {"a": PACKED | {"weights": INT4 | {"num_bits": 2}}}}, "num_bits is 2 and must be"),
        (
            CT | {"config_groups": {"a": PACKED | {"weights": INT4 | {"type": "float"}}}},
            "type is 'float' and must be",
        ),
        (
            CT | {"config_groups": {"a": PACKED | {"format": "mxfp4-pack-quantized", "weights": INT4}}},
            "type is 'int' and must be one of float",
        ),
    ],
)
def test_a_scheme_is_refused_with_what_is_accepted(config: dict[str, Any], said: str) -> None:
    with pytest.raises(HubError, match=f"{said}.*use another quantised version|{said}.*: use"):
        read_scheme(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (GPTQ4 | {"dynamic": {"+:(": {}}}, r"the broken regular expression '\('"),
        (CT | {"ignore": ["re:["]}, r"the broken regular expression '\['"),
        (GPTQ4 | {"modules_in_block_to_quantize": [[1]]}, "modules_in_block_to_quantize is .* a list of names"),
        (GPTQ4 | {"modules_in_block_to_quantize": 3}, "modules_in_block_to_quantize is 3 .* a list of names"),
        (AUTO_ROUND | {"extra_config": {"a": {"bits": None}}}, "extra_config is .* layers with 16 bits"),
        (AUTO_ROUND | {"extra_config": ["a"]}, "extra_config is .* must be an object"),
    ],
)
def test_broken_values_are_refused_by_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(HubError, match=said):
        read_scheme(config)


# From the config.json of published checkpoints, without the fields that describe how they were made.
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
_TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
_NONE: dict[str, Any] = {"block_structure": None, "actorder": None, "observer": "minmax", "observer_kwargs": {}}
PUBLISHED: dict[str, tuple[dict[str, Any], LayerFormat | None, LayerFormat | None]] = {
    "Qwen3-8B-FP8": (
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"],
        },
        Numbers("float8_e4m3fn", "block", (128, 128), quantise_inputs=True),
        None,
    ),
    "Llama-3.1-8B-Instruct-quantized.w8a8": (
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "quantization_status": "frozen",
            "kv_cache_scheme": None,
            "global_compression_ratio": 1.2,
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": _INT8 | _NONE | {"group_size": None},
                    "input_activations": _TOKENS | _NONE | {"group_size": None},
                    "output_activations": None,
                }
            },
        },
        Numbers("int8", "channel", quantise_inputs=True),
        None,
    ),
    "TheBloke-GPTQ": (
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "desc_act": True,
            "sym": True,
            "damp_percent": 0.1,
            "static_groups": False,
            "true_sequential": True,
            "model_name_or_path": None,
            "is_marlin_format": False,
            "model_file_base_name": "model",
            "lm_head": False,
        },
        GPTQ(4, 128, 1, desc_act=True),
        None,
    ),
    "Qwen2.5-7B-Instruct-AWQ": (
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 128,
            "version": "gemm",
            "zero_point": True,
            "modules_to_not_convert": None,
        },
        AWQ(128),
        None,
    ),
    "unsloth-bnb-4bit": (
        {
            "quant_method": "bitsandbytes",
            "_load_in_4bit": True,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": "nf4",
            "llm_int8_threshold": 6.0,
            "bnb_4bit_use_double_quant": True,
            "llm_int8_skip_modules": None,
        },
        BitsAndBytes4(64),
        None,
    ),
    "Llama-3.1-8B-Instruct-FP8 of NVIDIA": (
        {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head"],
        },
        Numbers("float8_e4m3fn", "tensor", quantise_inputs=True),
        None,
    ),
    "int4-AutoRound": (
        {
            "quant_method": "auto-round",
            "bits": 4,
            "group_size": 128,
            "sym": True,
            "data_type": "int",
            "packing_format": "auto_round:auto_gptq",
            "extra_config": {"model.layers.9.mlp.down_proj": {"bits": 16, "data_type": "fp"}},
        },
        GPTQ(4, 128, 1, desc_act=False),
        None,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name: str) -> None:
    config, layer, head = PUBLISHED[name]
    assert format_of(config, "layers.0.mlp.down_proj") == layer
    assert format_of(config, "lm_head") == head


def test_only_the_experts_of_gpt_oss_are_quantised() -> None:
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    formats = read_scheme({"quant_method": "mxfp4", "modules_to_not_convert": names}).formats
    assert formats is not None
    assert formats.format_of(Layer(("layers.0.self_attn.q_proj",))) is None
    assert formats.format_of(Layer(("layers.0.mlp.experts.0.down_proj",), is_expert=True)) == MXFP4Experts()
