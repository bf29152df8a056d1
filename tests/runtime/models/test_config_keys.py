"""Keys of config.json that are not used: logged if they change nothing, refused by name if they may."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
import transformers

from kvasir.models.architectures import (
    arcee,
    exaone4,
    gemma,
    glm,
    granite,
    helium,
    hunyuan,
    llama,
    mistral,
    olmo,
    phi3,
    qwen,
    seed_oss,
    smollm3,
)
from kvasir.models.architectures.layer_norm import (
    cohere,
    falcon,
    gpt2,
    gpt_neox,
    nemotron,
    opt,
    phi,
    stablelm,
    starcoder2,
)
from kvasir.models.architectures.mixtures import (
    ernie,
    glm4_moe,
    gpt_oss,
    granite_moe,
    hunyuan_moe,
    llama4,
    minimax_m2,
    mixtral,
    olmoe,
    phi_moe,
)
from kvasir.models.model_load_error import ModelLoadError
from runtime.models.test_config import LLAMA

READERS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "ArceeConfig": arcee.read_config,
    "CohereConfig": cohere.read_cohere,
    "Cohere2Config": cohere.read_cohere2,
    "Exaone4Config": exaone4.read_config,
    "FalconConfig": falcon.read_config,
    "GlmConfig": glm.read_glm,
    "Glm4Config": glm.read_glm4,
    "GPTNeoXConfig": gpt_neox.read_config,
    "GPT2Config": gpt2.read_config,
    "GemmaConfig": gemma.read_gemma,
    "Gemma2Config": gemma.read_gemma2,
    "Gemma3TextConfig": gemma.read_gemma3,
    "GraniteConfig": granite.read_config,
    "HeliumConfig": helium.read_config,
    "HyperCLOVAXConfig": granite.read_hyperclovax,
    "HunYuanDenseV1Config": hunyuan.read_config,
    "LlamaConfig": llama.read_config,
    "MinistralConfig": mistral.read_ministral,
    "Ministral3Config": mistral.read_ministral3,
    "MistralConfig": mistral.read_config,
    "NemotronConfig": nemotron.read_config,
    "Olmo2Config": olmo.read_olmo2,
    "Olmo3Config": olmo.read_olmo3,
    "OPTConfig": opt.read_config,
    "PhiConfig": phi.read_config,
    "Phi3Config": phi3.read_config,
    "Qwen2Config": qwen.read_qwen2,
    "Qwen3Config": qwen.read_qwen3,
    "Qwen3MoeConfig": qwen.read_qwen3_moe,
    "SeedOssConfig": seed_oss.read_config,
    "SmolLM3Config": smollm3.read_config,
    "StableLmConfig": stablelm.read_config,
    "Starcoder2Config": starcoder2.read_config,
    "Dots1Config": glm4_moe.read_dots1,
    "Ernie4_5Config": ernie.read_ernie,
    "Ernie4_5_MoeConfig": ernie.read_ernie_moe,
    "Glm4MoeConfig": lambda values: glm4_moe.read_glm4_moe({"head_dim": 128, **values}),
    "GptOssConfig": gpt_oss.read_config,
    "GraniteMoeConfig": granite_moe.read_config,
    "GraniteMoeSharedConfig": granite_moe.read_config,
    "HunYuanMoEV1Config": hunyuan_moe.read_config,
    "Llama4TextConfig": llama4.read_config,
    "MiniMaxM2Config": minimax_m2.read_config,
    "MixtralConfig": mixtral.read_config,
    "OlmoeConfig": olmoe.read_config,
    "PhimoeConfig": phi_moe.read_config,
    "Qwen2MoeConfig": qwen.read_qwen2_moe,
}
NOTES: dict[str, Any] = {
    "_attn_implementation": "sdpa",
    "_comment": "merged",
    "_model_name_or_path": "My 135M",
    "_num_labels": 1,
    "is_decoder": True,
    "max_sequence_length": 2048,
    "max_seq_len": 4096,
    "model_max_length": 4096,
    "n_special": 0,
    "output_past": True,
    "predict_special_tokens": True,
    "pruned_heads": {},
    "quantization": {},
    "tokenizer_model_max_length": 4096,
    "unk_token_id": 0,
    "unsloth_fixed": True,
    "unsloth_version": "2025.1.1",
    "use_flash_attention": True,
}


@pytest.mark.parametrize("name", READERS)
def test_no_field_of_transformers_config_is_a_mere_note(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A field that a new version of transformers reads must be read here, or be refused, too."""
    config = getattr(transformers, name)()
    values = config.to_dict()
    own = {field.name for field in dataclasses.fields(config)} | set(config.attribute_map) | set(values)
    with caplog.at_level(logging.INFO):
        for key in own:
            with suppress(ModelLoadError):
                READERS[name](values | {key: values.get(key) or 7})
    assert "change nothing" not in caplog.text


@pytest.mark.parametrize("name", READERS)
def test_notes_of_other_programs_are_one_line_of_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    values = getattr(transformers, name)().to_dict()
    notes = {key: value for key, value in NOTES.items() if key not in values}
    with caplog.at_level(logging.INFO):
        assert READERS[name](values | notes) == READERS[name](values)
    (line,) = [record.getMessage() for record in caplog.records]
    named = [key for key, value in notes.items() if value]
    assert line == f"config.json has keys that change nothing: {', '.join(sorted(named))}"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("key", "value", "neutral"),
    [
        ("clip_qkv", 8.0, None),
        ("dual_chunk_attention_config", {"chunk_size": 8}, {}),
        ("embedding_multiplier", 12.0, 1.0),
        ("is_causal", False, True),
        ("logits_scaling", 8.0, 1),
        ("no_rope_layers", [1, 0], []),
        ("residual_multiplier", 0.22, 1.0),
        ("rotary_pct", 0.25, 1.0),
        ("residual_multiplier", 0, None),
        ("bias", "all", "none"),
        ("bias", True, False),
        ("vision_config", {"hidden_size": 8}, {}),
    ],
)
def test_what_may_change_answers_is_refused_unless_neutral(name: str, key: str, value: Any, neutral: Any) -> None:
    values = getattr(transformers, name)().to_dict()
    if key in values or (name, key) == ("GPTNeoXConfig", "rotary_pct"):
        pytest.skip("the architecture computes with it")
    assert READERS[name](values | {key: neutral}) == READERS[name](values)
    with pytest.raises(ModelLoadError, match=f"'{key}'.*may change the answers.*--hf-overrides"):
        READERS[name](values | {key: value})


@pytest.mark.parametrize("name", READERS)
def test_layer_types_are_taken_if_they_are_computed_anyway(name: str) -> None:
    values = getattr(transformers, name)().to_dict() | {"layer_types": None}
    read = READERS[name](values)
    windows = [layer.window for layer in read.layers]
    types = ["full_attention" if window is None else "sliding_attention" for window in windows]
    assert READERS[name](values | {"layer_types": types}) == read
    with pytest.raises(ModelLoadError, match="layer_types"):
        READERS[name](values | {"layer_types": types[1:]})


@pytest.mark.parametrize("read", [llama.read_config, phi3.read_config, qwen.read_qwen3_moe, gemma.read_gemma])
def test_layer_types_that_differ_are_refused(read: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(ModelLoadError, match=r"layer_types.*\(full, full\).*may change the answers"):
        read(LLAMA | {"layer_types": ["full_attention", "sliding_attention"]})


def test_original_positions_next_to_a_scaling_must_agree() -> None:
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}}
    same = llama.read_config(LLAMA | yarn | {"original_max_position_embeddings": 64})
    assert same == llama.read_config(LLAMA | yarn)
    assert llama.read_config(LLAMA | {"original_max_position_embeddings": 64}) == llama.read_config(LLAMA)
    with pytest.raises(ModelLoadError, match="original_max_position_embeddings"):
        llama.read_config(LLAMA | yarn | {"original_max_position_embeddings": 32})


def test_window_that_is_switched_off_changes_nothing() -> None:
    off = {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1}
    assert llama.read_config(LLAMA | off) == llama.read_config(LLAMA)
    with pytest.raises(ModelLoadError, match="'sliding_window'"):
        llama.read_config(LLAMA | {"sliding_window": 8})


def test_gpt2_reads_the_names_of_other_architectures() -> None:
    names = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 32}
    own = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 32}
    assert gpt2.read_config(names) == gpt2.read_config(own) == gpt2.read_config(names | own)
    with pytest.raises(ModelLoadError, match="'hidden_size' to 32; supported is 64"):
        gpt2.read_config(own | {"hidden_size": 32})
