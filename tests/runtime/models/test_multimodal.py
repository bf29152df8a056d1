import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, PreTrainedModel

from kvasir.hub.hub_errors import HubError
from kvasir.hub.model_info import ModelFiles, load_model_info
from kvasir.hub.text_part import DEFAULTS, TEXT_MODELS
from kvasir.models.registry import ARCHITECTURES
from kvasir.models.transformers_code.transformers_checks import find_class
from runtime.models.test_transformers_caches import LINEAR
from runtime.models.tiny import SPECIAL, VOCAB, randomised
from runtime.worker.driver import Driver, greedy
from runtime.worker.test_greedy import assert_greedy, prompts

TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    **SPECIAL,
}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
QWEN_VISION = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}


def whole(name: str, text: Mapping[str, Any], vision: Mapping[str, Any]) -> PreTrainedModel:
    config = getattr(transformers, f"{name}Config")(text_config={**TEXT, **text}, vision_config=vision)
    return randomised(AutoModelForImageTextToText.from_config(config))


MODELS: Mapping[str, Callable[[], PreTrainedModel]] = {
    "gemma3": lambda: whole("Gemma3", {"head_dim": 32, "sliding_window": 17, "sliding_window_pattern": 2}, VISION),
    "llava": lambda: whole("Llava", {"model_type": "llama"}, {"model_type": "clip_vision_model", **VISION}),
    "llama4": lambda: whole(
        "Llama4",
        {"num_local_experts": 4, "head_dim": 16, "intermediate_size_mlp": 80, "no_rope_layer_interval": 2},
        {**VISION, "image_size": 28, "patch_size": 14, "vision_output_dim": 32, "projector_input_dim": 32},
    ),
    "mistral3": lambda: whole(
        "Mistral3", {"model_type": "mistral", "head_dim": 32}, {"model_type": "pixtral", **VISION}
    ),
    "qwen2-vl": lambda: whole(
        "Qwen2VL", {"rope_parameters": MROPE}, {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64}
    ),
    "qwen2.5-vl": lambda: whole("Qwen2_5_VL", {"rope_parameters": MROPE, "tie_word_embeddings": True}, QWEN_VISION),
    "qwen3-vl": lambda: whole("Qwen3VL", {"head_dim": 16, "rope_parameters": MROPE}, QWEN_VISION),
    "qwen3.5": lambda: whole("Qwen3_5", LINEAR | {"rope_parameters": dict(MROPE)}, QWEN_VISION),
    "gemma4": lambda: whole(
        "Gemma4",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB,
            "num_kv_shared_layers": 1,
            "pad_token_id": 0,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "sliding_window": 17,
        },
        VISION,
    ),
    "qwen3-vl-moe": lambda: whole(
        "Qwen3VLMoe",
        {
            "head_dim": 16,
            "rope_parameters": MROPE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
        },
        QWEN_VISION,
    ),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_text_model_computes_the_tokens_of_the_whole(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = MODELS[name]()
    model.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        driver = Driver.load(tmp_path)
    assert caplog.text.count("only the text model is loaded") == 1
    batch = prompts([9, 45])
    for index, prompt in enumerate(batch):
        driver.add(f"r{index}", prompt, greedy(12))
    outputs = driver.run(budget=16)
    # transformers 5.24 cannot compute the whole Llama 4 without an image.
    reference: Any = model.language_model if name == "llama4" else model
    for index, prompt in enumerate(batch):
        assert_greedy(reference, prompt, outputs[f"r{index}"])


def test_files_without_text_config_are_read(tmp_path: Path) -> None:
    """The first Qwen2-VL and Qwen2.5-VL have one object, and other names of tensors."""
    model = MODELS["qwen2.5-vl"]()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    flat = config | config.pop("text_config") | {"model_type": "qwen2_5_vl"}
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
    (tmp_path / "config.json").write_text(json.dumps(flat | {"rope_parameters": None, "rope_theta": 10000.0}))
    driver = Driver.load(tmp_path)
    (prompt,) = prompts([30])
    driver.add("r", prompt, greedy(8))
    assert_greedy(model, prompt, driver.run()["r"])


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_experts_with_inputs_first_are_turned(prefix: str, tmp_path: Path) -> None:
    """Qwen3-VL-MoE on the hub has [experts, inputs, outputs]."""
    model = MODELS["qwen3-vl-moe"]()
    model.save_pretrained(tmp_path)
    tensors = {}
    for name, tensor in model.state_dict().items():
        turned = tensor.transpose(1, 2) if ".experts." in name else tensor
        tensors[name.replace("model.language_model.", prefix)] = turned.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    driver = Driver.load(tmp_path)
    (prompt,) = prompts([30])
    driver.add("r", prompt, greedy(8))
    assert_greedy(model, prompt, driver.run()["r"])


def test_every_text_model_has_code() -> None:
    for name in set(TEXT_MODELS.values()) - set(ARCHITECTURES):
        find_class(name)  # of transformers


@pytest.mark.parametrize("kind", ["gemma3_text", "llama", "mistral"])
def test_absent_sizes_are_those_of_transformers(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind)
    assert {name: getattr(config, name) for name in DEFAULTS[kind]} == DEFAULTS[kind]


def test_overrides_reach_the_text_model(tmp_path: Path) -> None:
    MODELS["llava"]().save_pretrained(tmp_path)
    files = ModelFiles(overrides={"max_position_embeddings": 99, "text_config": {"rms_norm_eps": 0.5}})
    info = load_model_info(tmp_path, files)
    assert (info.max_model_len, info.config["rms_norm_eps"]) == (99, 0.5)
    assert info.multimodal == "LlavaForConditionalGeneration"


def test_contexts_of_llama4_end_with_the_first_chunk(tmp_path: Path) -> None:
    MODELS["llama4"]().save_pretrained(tmp_path)
    overrides = {"max_position_embeddings": 300, "attention_chunk_size": 200}
    info = load_model_info(tmp_path, ModelFiles(overrides={**overrides, "floor_scale": 100}))
    assert info.max_model_len == 99
    assert "limited to 99 tokens, because attention by chunks" in info.notes[-1]
    assert load_model_info(tmp_path, ModelFiles(overrides=overrides)).max_model_len == 200


def test_unknown_text_model_is_refused_by_name(tmp_path: Path) -> None:
    MODELS["llava"]().save_pretrained(tmp_path)
    files = ModelFiles(overrides={"text_config": {"model_type": "opt"}})
    with pytest.raises(HubError, match=r"text model of LlavaForCond.* is of the type 'opt'; supported are .*llama"):
        load_model_info(tmp_path, files)
