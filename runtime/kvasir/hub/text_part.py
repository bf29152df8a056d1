"""The text model of a multimodal checkpoint: its config, and the names of its tensors. Imports no torch.

Without an image or a sound, these models compute what their text model does: positions of three dimensions (mrope)
are then equal.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kvasir.hub.hub_errors import HubError

# Their config.json has the text model in `text_config`, or is the text model's with more keys.
MULTIMODAL: Final = frozenset((
    "AyaVisionForConditionalGeneration", "Gemma3ForConditionalGeneration", "Gemma4ForConditionalGeneration",
    "Idefics3ForConditionalGeneration", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "InternVLForConditionalGeneration", "Llama4ForConditionalGeneration", "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration", "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration", "SmolVLMForConditionalGeneration",
))  # fmt: skip

# By the text model's model_type.
TEXT_MODELS: Final = MappingProxyType({
    "cohere2": "Cohere2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "gemma4_text": "Gemma4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "llama": "LlamaForCausalLM", "llama4_text": "Llama4ForCausalLM", "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen2_5_vl": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM", "qwen2_vl": "Qwen2ForCausalLM", "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM", "qwen3_vl_text": "Qwen3ForCausalLM",
})  # fmt: skip

# What transformers leaves out of `text_config`: defaults of its class.
DEFAULTS: Final = MappingProxyType[str, dict[str, Any]]({
    "gemma3_text": {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072,
    },
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
    "qwen3_vl_moe_text": {"norm_topk_prob": True},
})  # fmt: skip

# Keys of the whole model that hold for its text model.
_OF_THE_WHOLE: Final = ("tie_word_embeddings", "quantization_config")
_OF_EITHER: Final = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")
_OTHER_PARTS: Final = frozenset(("architectures", "audio_config", "text_config", "vision_config"))

_TEXT: Final = re.compile(r"^(?:model\.)?(?:language_model|text_model)\.(?:model\.)?")
_OTHER: Final = re.compile(
    r"^(?:model\.)?(?:vision_tower|vision_model|visual|multi_modal_projector|connector|image_newline|audio_tower|"
    r"embed_audio|embed_vision)\b"
)


def text_config(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config of a multimodal model's text model; None: it is not multimodal. Raises HubError."""
    names = values.get("architectures")
    if not isinstance(names, list) or not names or names[0] not in MULTIMODAL:
        return None
    nested = values.get("text_config")
    text = dict(nested) if isinstance(nested, dict) else {k: v for k, v in values.items() if k not in _OTHER_PARTS}
    kind = str(text.get("model_type"))
    if kind not in TEXT_MODELS:
        raise HubError(
            f"architectures: the text model of {names[0]} is of the type {kind!r}; supported are "
            + ", ".join(sorted(TEXT_MODELS))
        )
    either = {name: values[name] for name in _OF_EITHER if name in values and text.get(name) is None}
    whole = {name: values[name] for name in _OF_THE_WHOLE if values.get(name) is not None}
    changed = {name: value for name, value in overrides.items() if name not in _OTHER_PARTS}
    result = {**DEFAULTS.get(kind, {}), **text, **either, **whole, **changed, "architectures": [TEXT_MODELS[kind]]}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(result.get(name), dict):
            result[name] = _without_mrope(result[name])
    return result


def text_tensor(name: str) -> str | None:
    """Return the name of a tensor in the text model's own checkpoint; None: it is of another part.

    >>> text_tensor("language_model.model.layers.0.mlp.up_proj.weight")
    'layers.0.mlp.up_proj.weight'
    >>> text_tensor("model.visual.blocks.0.norm1.weight")
    """
    return None if _OTHER.match(name) else _TEXT.sub("", name)


def _without_mrope(rope: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in rope.items() if not name.startswith("mrope_")}
    return kept | {name: "default" for name in ("type", "rope_type") if kept.get(name) == "mrope"}
