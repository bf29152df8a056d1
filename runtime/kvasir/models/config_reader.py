"""Reads config.json. An unused key is logged if it changes nothing, and rejected if it may.

A test compares the keys with transformers' config classes.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kvasir.hub.rope_parameters import ROPE_KEYS, rope_parameters
from kvasir.models.model_load_error import ModelLoadError, UnsupportedSetting

log = logging.getLogger(__name__)

T = TypeVar("T")

# Keys that do not change the result for a prompt.
NO_EFFECT: Final = frozenset((
    # bookkeeping
    "_commit_hash", "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "license", "model_type", "num_labels", "prefix", "problem_type",
    "task_specific_params", "tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_version",
    # kvasir.hub reads them
    "compression_config", "quantization_config",
    # transformers: running or training
    "_attn_implementation_autoset", "_flash_attn_2_enabled", "attention_dropout", "attn_implementation",
    "attn_pdrop", "chunk_size_feed_forward", "embd_pdrop", "finetuning_task", "hidden_dropout", "initializer_range",
    "cache_implementation", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "pretraining_tp", "resid_pdrop", "return_dict", "router_aux_loss_coef", "tf_legacy_loss", "torchscript",
    "use_bfloat16", "use_cache",
    # a classifier's head
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    # generation: special tokens, and defaults of older files
    "bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
    "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
))  # fmt: skip

# Keys that some architecture of transformers or vLLM computes with.
_MAY_CHANGE: Final = frozenset((
    # attention
    "alibi", "attention_bias", "attention_chunk_size", "attention_multiplier", "attention_sink", "attn_scale",
    "attn_logit_softcapping", "attn_temperature_tuning", "bias", "cla_share_factor", "clip_qkv",
    "dual_chunk_attention_config", "final_logit_softcapping", "head_dim", "interleaved_sliding_window", "is_causal",
    "kv_lora_rank", "lm_head_bias", "multi_query", "num_key_value_heads", "q_lora_rank", "qk_layernorm", "qk_norm",
    "qkv_bias", "query_pre_attn_scalar", "sliding_window", "sliding_window_pattern", "sliding_window_size",
    "use_bidirectional_attention", "use_qk_norm", "v_head_dim",
    # positions
    "alpha", "apply_yarn_scaling", "attn_factor", "extrapolation_factor", "llama_4_scaling",
    "llama_4_scaling_beta", "mrope_interleaved", "mrope_section", "no_rope_layer_interval", "no_rope_layers",
    "original_max_position_embeddings", "position_embedding_type", "rope_interleaved", "rope_local_base_freq",
    "rope_percent", "rope_ratio", "rotary_dim", "rotary_emb_base", "rotary_pct", "use_rope",
    # residual stream and head
    "add_swiglu_limit", "block_configs", "dim_model_base", "embedding_multiplier", "layer_types", "logit_scale",
    "logits_scaling", "mlp_bias", "norm_type", "normalization_type", "parallel_attn", "per_layer_config",
    "residual_multiplier", "scale_depth", "scale_emb", "use_parallel_residual",
    # experts
    "first_k_dense_replace", "moe_intermediate_size", "n_routed_experts", "n_shared_experts", "num_experts",
    "num_experts_per_tok", "num_local_experts", "shared_expert_intermediate_size",
    # other parts
    "add_cross_attention", "audio_config", "compression_config", "cross_attention_hidden_size",
    "is_encoder_decoder", "pruned_heads", "quantization", "vision_config",
    # kinds of layers, in rotary settings
    "chunked_attention", "full_attention", "sliding_attention",
))  # fmt: skip

# Values without effect. For other keys: false, 0, empty. A null key counts as absent.
_NEUTRAL: Final = MappingProxyType[str, tuple[Any, ...]]({
    "apply_yarn_scaling": (True,), "attn_factor": (1,), "bias": (False, "none"), "embedding_multiplier": (1,),
    "extrapolation_factor": (1,), "is_causal": (True,), "logit_scale": (1,), "logits_scaling": (1,),
    "position_embedding_type": ("rope",), "residual_multiplier": (1,), "rope_percent": (1,), "rope_ratio": (1,),
    "rotary_pct": (1,), "scale_depth": (1,), "scale_emb": (1,), "use_rope": (True,),
})  # fmt: skip

_FROM_ORIGINAL: Final = frozenset(("llama3", "longrope", "yarn"))
REQUIRED: Final = object()


class ConfigReader:
    """Typed access to config.json. `finish` judges the keys that were not read."""

    def __init__(self, config: Mapping[str, Any], name: str = "config.json") -> None:
        self._config = config
        self._name = name
        self._read: set[str] = set()

    def integer(self, key: str, default: Any = REQUIRED, least: int = 1) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._bad(key, value, f"a whole number, {least} or more")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._bad(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def choice(self, key: str, default: Any, choices: Mapping[str, Any]) -> Any:
        # Raises ModelLoadError for other values.
        value = self._value(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self._bad(key, value, "one of " + ", ".join(sorted(choices)), UnsupportedSetting)
        return choices[value]

    def optional(self, read: Callable[[str], T], key: str, default: T | None) -> T | None:
        """Return the value that `read` finds; None for null, and `default` for an absent key."""
        self._read.add(key)
        if key not in self._config:
            return default
        return None if self._config[key] is None else read(key)

    def integers(self, key: str) -> tuple[int, ...]:
        # Empty if the key is absent.
        value = self._value(key, [])
        if not isinstance(value, list) or not all(type(entry) is int and entry >= 0 for entry in value):
            raise self._bad(key, value, "a list of whole numbers")
        return tuple(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        value = self._value(key, REQUIRED)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(type(entry) in (int, float) and 0 < entry < math.inf for entry in value)
        ):
            raise self._bad(key, value, f"a list of {count} numbers above 0")
        return tuple(map(float, value))

    def choices(self, key: str, count: int, choices: Mapping[str, T]) -> tuple[T, ...] | None:
        """Return `count` entries of `choices`, which a list names; None if it is absent."""
        value = self._value(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or not all(entry in choices for entry in value):
            raise self._bad(key, value, f"a list of {count} entries, each one of " + ", ".join(sorted(choices)))
        return tuple(choices[entry] for entry in value)

    def rope(self, by_layer: bool) -> "ConfigReader":
        """Return the rotary settings in normal form, of all layers or by kind of layer."""
        self._read |= ROPE_KEYS if by_layer else ROPE_KEYS - {"rope_local_base_freq"}
        name = "rope_scaling" if self._config.get("rope_scaling") else "rope_parameters"
        return ConfigReader(rope_parameters(self._config, by_layer), f"{name} in {self._name}")

    def part(self, key: str) -> "ConfigReader":
        return ConfigReader(self._value(key, {}), f"{key} of {self._name}")

    def is_set(self, key: str) -> bool:
        """Return whether the key is there, and neither null nor 0."""
        self._read.add(key)
        return bool(self._config.get(key))

    def change(self, values: Mapping[str, Any], names: Mapping[str, str] = {}) -> None:
        """Replace values, and rename keys if the new name is not there."""
        renamed = {new: self._config[old] for old, new in names.items() if old in self._config}
        self._config = renamed | {key: self._config[key] for key in self._config if key not in names} | dict(values)

    def raw(self, key: str) -> Any:
        return self._config.get(key)

    def ignore(self, *keys: str) -> None:
        self._read.update(keys)

    def require(self, key: str, value: Any, elsewhere: bool = False) -> None:
        """Reject a key with another value. `elsewhere`: transformers' code computes other values."""
        if self._value(key, value) != value:
            kind = UnsupportedSetting if elsewhere else ModelLoadError
            raise self._bad(key, self._config[key], json.dumps(value), kind)

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        """Log the unused keys that change nothing. Raises ModelLoadError for one that may."""
        notes = []
        for key, value in self._config.items():
            if key in self._read or key in ignored or value is None:
                continue
            if self._may_change(key, value):
                raise ModelLoadError(
                    f"{self._name} sets {key!r} to {value!r}, which this architecture does not compute with here: "
                    f"it may change the answers; if not, remove it with --hf-overrides '{{\"{key}\": null}}'"
                )
            if value:
                notes.append(key)
        if notes:
            log.info("%s has keys that change nothing: %s", self._name, ", ".join(sorted(notes)))

    def _may_change(self, key: str, value: Any) -> bool:
        if key == "sliding_window" and self._config.get("use_sliding_window") is False:
            return False
        if key == "original_max_position_embeddings":
            scaling = rope_parameters(self._config)
            return scaling.get("rope_type") in _FROM_ORIGINAL and scaling.get(key) != value
        return key in _MAY_CHANGE and (value not in _NEUTRAL[key] if key in _NEUTRAL else bool(value))

    def _value(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._config.get(key)
        if value is None:
            if default is REQUIRED:
                raise ModelLoadError(f"{self._name} lacks {key!r}")
            return default
        return value

    def _bad(
        self, key: str, value: Any, accepted: str, kind: type[ModelLoadError] = ModelLoadError
    ) -> ModelLoadError:
        return kind(f"{self._name} sets {key!r} to {value!r}; supported is {accepted}")
