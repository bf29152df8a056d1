"""The config.json that describes the model of a GGUF file, as the checkpoint that it was made from had it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from kvasir.hub.gguf.gguf_metadata import Metadata
from kvasir.hub.hub_errors import HubError

# the small tensors of the file, by name
Small = Mapping[str, Sequence[float]]
_Config = dict[str, Any]

# Keys that change the computation if they have another value.
_NEUTRAL: Final = MappingProxyType({
    "attention.scale": 0, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0, "attention.causal": True,
    "attention.temperature_scale": 0, "logit_scale": 0, "residual_scale": 0, "embedding_scale": 0,
    "rope.scaling.yarn_log_multiplier": 0, "use_parallel_residual": True, "expert_count": 0,
})  # fmt: skip

_MULTIPLIERS: Final = MappingProxyType(
    {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "logit_scale": "logits_scaling",
        "residual_scale": "residual_multiplier",
    }
)
_COMPUTED: Final = MappingProxyType({"granite": frozenset(_MULTIPLIERS)})


def config_of(metadata: Metadata, small: Small) -> _Config:
    """Raises HubError for an architecture or a setting that is not supported."""
    family = FAMILIES.get(metadata.architecture)
    if family is None:
        raise HubError(
            f"{metadata.name} has the architecture {metadata.architecture}, which is not read from GGUF; read are "
            f"{', '.join(sorted(FAMILIES))}: give the model in safetensors"
        )
    config = family(metadata, small)
    computed = set(_COMPUTED.get(metadata.architecture, ()))
    if not {"num_experts", "num_local_experts"}.isdisjoint(config):
        computed.add("expert_count")
    for key, neutral in _NEUTRAL.items():
        value = metadata.value(key, neutral)
        if value != neutral and key not in computed:
            raise metadata.error(key, value, f"{neutral} for this architecture: give the model in safetensors")
    tokens = {f"{name}_token_id": metadata.of_file(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    return config | {name: token for name, token in tokens.items() if token is not None}


def _decoder(metadata: Metadata, architecture: str, model_type: str) -> _Config:
    heads = metadata.count("attention.head_count")
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": _vocab_size(metadata),
        "hidden_size": metadata.count("embedding_length"),
        "intermediate_size": metadata.count("feed_forward_length"),
        "num_hidden_layers": metadata.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.count("attention.head_count_kv", heads),
        "max_position_embeddings": metadata.count("context_length"),
        "tie_word_embeddings": not metadata.has("output.weight"),
    }


def _rms_decoder(metadata: Metadata, small: Small, architecture: str, model_type: str, **fields: Any) -> _Config:
    config = _decoder(metadata, architecture, model_type)
    rotary, head_dim = _rotary_size(metadata, config), _head_dim(metadata, config)
    if rotary != head_dim:
        raise metadata.error("rope.dimension_count", rotary, f"{head_dim}, the size of a head")
    return config | {
        "head_dim": head_dim,
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(metadata, small),
        **fields,
    }


def _llama(metadata: Metadata, small: Small) -> _Config:
    if metadata.count("expert_count", 0, least=0):
        return _rms_decoder(metadata, small, "MixtralForCausalLM", "mixtral") | {
            "num_local_experts": metadata.count("expert_count"),
            "num_experts_per_tok": metadata.count("expert_used_count"),
        }
    return _rms_decoder(metadata, small, "LlamaForCausalLM", "llama") | {
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "mlp_bias": metadata.has("blk.0.ffn_up.bias"),
    }


def _granite(metadata: Metadata, small: Small) -> _Config:
    return _rms_decoder(metadata, small, "GraniteForCausalLM", "granite") | {
        name: metadata.number(key) for key, name in _MULTIPLIERS.items() if metadata.value(key) is not None
    }


def _qwen3(metadata: Metadata, small: Small) -> _Config:
    return _rms_decoder(metadata, small, "Qwen3ForCausalLM", "qwen3") | {
        "attention_bias": metadata.has("blk.0.attn_q.bias")
    }


def _qwen3_moe(metadata: Metadata, small: Small) -> _Config:
    width = metadata.count("expert_feed_forward_length")
    if metadata.value("feed_forward_length") is None:  # no dense layer has it
        metadata = metadata.with_default("feed_forward_length", width)
    config = _rms_decoder(metadata, small, "Qwen3MoeForCausalLM", "qwen3_moe")
    layers = range(config["num_hidden_layers"])
    return config | {
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "num_experts": metadata.count("expert_count"),
        "num_experts_per_tok": metadata.count("expert_used_count"),
        "moe_intermediate_size": width,
        "norm_topk_prob": True,  # as in llama.cpp, which has no key for it
        "mlp_only_layers": [layer for layer in layers if not metadata.has(f"blk.{layer}.ffn_gate_exps.weight")],
    }


def _gemma2(metadata: Metadata, small: Small) -> _Config:
    config = _rms_decoder(metadata, small, "Gemma2ForCausalLM", "gemma2")
    return config | {
        "sliding_window": metadata.count("attention.sliding_window", 4096),
        "query_pre_attn_scalar": _query_scalar(config, layers_of_largest=46),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 30.0),
    }


def _gemma3(metadata: Metadata, small: Small) -> _Config:
    config = _rms_decoder(metadata, small, "Gemma3ForCausalLM", "gemma3_text")
    within_window = {"rope_type": "default", "rope_theta": metadata.number("rope.freq_base_swa", 10000.0)}
    return config | {
        "sliding_window": metadata.count("attention.sliding_window"),
        **_pattern(metadata, config["num_hidden_layers"], 6),
        "query_pre_attn_scalar": _query_scalar(config, layers_of_largest=62),
        "final_logit_softcapping": metadata.value("final_logit_softcapping"),
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": within_window},
    }


def _partly_rotated(metadata: Metadata, small: Small, architecture: str, model_type: str) -> _Config:
    config = _decoder(metadata, architecture, model_type)
    share = _rotary_size(metadata, config) / _head_dim(metadata, config)
    return config | {"rope_parameters": _rope(metadata, small) | {"partial_rotary_factor": share}}


def _phi2(metadata: Metadata, small: Small) -> _Config:
    config = _partly_rotated(metadata, small, "PhiForCausalLM", "phi")
    return config | {"layer_norm_eps": metadata.number("attention.layer_norm_epsilon")}


def _phi3(metadata: Metadata, small: Small) -> _Config:
    config = _partly_rotated(metadata, small, "Phi3ForCausalLM", "phi3")
    original = metadata.count("rope.scaling.original_context_length", config["max_position_embeddings"])
    return config | {
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "sliding_window": metadata.count("attention.sliding_window", 0, least=0) or None,
        "original_max_position_embeddings": original,
    }


def _gpt2(metadata: Metadata, _: Small) -> _Config:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": _vocab_size(metadata),
        "n_embd": metadata.count("embedding_length"),
        "n_inner": metadata.count("feed_forward_length"),
        "n_layer": metadata.count("block_count"),
        "n_head": metadata.count("attention.head_count"),
        "n_positions": metadata.count("context_length"),
        "layer_norm_epsilon": metadata.number("attention.layer_norm_epsilon"),
        "tie_word_embeddings": not metadata.has("output.weight"),
    }


FAMILIES: Final[Mapping[str, Callable[[Metadata, Small], _Config]]] = MappingProxyType(
    {
        "gemma": partial(_rms_decoder, architecture="GemmaForCausalLM", model_type="gemma"),
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "gpt2": _gpt2,
        "granite": _granite,
        "llama": _llama,  # and Mistral and Mixtral
        "olmo2": partial(_rms_decoder, architecture="Olmo2ForCausalLM", model_type="olmo2"),
        "phi2": _phi2,
        "phi3": _phi3,
        "qwen2": partial(_rms_decoder, architecture="Qwen2ForCausalLM", model_type="qwen2"),
        "qwen3": _qwen3,
        "qwen3moe": _qwen3_moe,
        # llama.cpp has no key for the interval, either
        "smollm3": partial(
            _rms_decoder, architecture="SmolLM3ForCausalLM", model_type="smollm3", no_rope_layer_interval=4
        ),
    }
)


def _vocab_size(metadata: Metadata) -> int:
    shape = metadata.shapes.get("token_embd.weight")
    if shape is None or len(shape) != 2:
        raise HubError(f"{metadata.name} has no embedding token_embd.weight: is it a whole model?")
    return shape[0]


def _head_dim(metadata: Metadata, config: _Config) -> int:
    size = metadata.count("attention.key_length", config["hidden_size"] // config["num_attention_heads"])
    if metadata.count("attention.value_length", size) != size:
        raise metadata.error("attention.value_length", metadata.value("attention.value_length"), f"{size}")
    return size


def _rotary_size(metadata: Metadata, config: _Config) -> int:
    return metadata.count("rope.dimension_count", _head_dim(metadata, config))


def _query_scalar(config: _Config, layers_of_largest: int) -> float:
    # not among the keys; llama.cpp finds the largest model by its layers, too
    if config["num_hidden_layers"] == layers_of_largest:
        return float(config["hidden_size"] / config["num_attention_heads"])
    return float(config["head_dim"])


def _pattern(metadata: Metadata, layers: int, default: int) -> _Config:
    # a period, or a flag for each layer
    pattern = metadata.of_file(f"{metadata.architecture}.attention.sliding_window_pattern", default)
    if not isinstance(pattern, list):
        return {"sliding_window_pattern": metadata.count("attention.sliding_window_pattern", default)}
    return {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern[:layers]]}


def _rope(metadata: Metadata, small: Small) -> _Config:
    rope: _Config = {"rope_theta": metadata.number("rope.freq_base", 10000.0)}
    kind = metadata.value("rope.scaling.type", "none")
    original = metadata.value("rope.scaling.original_context_length") or metadata.count("context_length")
    if "rope_freqs.weight" in small:  # Llama 3's scaling, as divisors of the frequencies
        divisors = list(small["rope_freqs.weight"])
        return rope | _divided(divisors, divisors, original) | {"attention_factor": 1.0}
    if "rope_factors_long.weight" in small and "rope_factors_short.weight" in small:
        short, long = (list(small[f"rope_factors_{name}.weight"]) for name in ("short", "long"))
        factor = metadata.value("rope.scaling.attn_factor")
        return rope | _divided(short, long, original) | ({"attention_factor": factor} if factor else {})
    if kind == "none":
        return rope
    factor = metadata.number("rope.scaling.factor")
    if kind == "linear":
        return rope | {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise metadata.error("rope.scaling.type", kind, "none, linear or yarn")
    betas = {f"beta_{name}": metadata.value(f"rope.scaling.yarn_beta_{name}") for name in ("fast", "slow")}
    yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    return rope | yarn | {name: beta for name, beta in betas.items() if beta is not None}


def _divided(short: list[float], long: list[float], original: int) -> _Config:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
    }
