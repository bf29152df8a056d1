"""Reads config.json strictly: every key is used, known to be without effect on inference, or refused by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.rotary import LinearScaling, Llama3Scaling, RopeScaling
from kvasir.models.errors import ModelLoadError

NO_EFFECT: Final = frozenset((
    # bookkeeping
    "_commit_hash", "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "license", "model_type", "num_labels", "prefix", "problem_type",
    "task_specific_params", "tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_version",
    # how transformers runs or trains the model
    "_attn_implementation_autoset", "_flash_attn_2_enabled", "attention_dropout", "attn_implementation",
    "attn_pdrop", "chunk_size_feed_forward", "embd_pdrop", "finetuning_task", "hidden_dropout", "initializer_range",
    "output_attentions", "output_hidden_states", "output_scores", "pretraining_tp", "resid_pdrop", "return_dict",
    "tf_legacy_loss", "torchscript", "use_bfloat16", "use_cache",
    # a classifier's head
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    # generation: special tokens (kvasir.hub reads them) and defaults that older files keep here
    "bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
    "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
))  # fmt: skip
"""Keys that do not change what the model computes for a prompt."""

_REQUIRED: Final = object()


class ConfigReader:
    """Typed access to config.json that remembers what was read; `finish` refuses the rest."""

    def __init__(self, config: Mapping[str, Any], name: str = "config.json") -> None:
        self._config = config
        self._name = name
        self._read: set[str] = set()

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._bad(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self._bad(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def choice(self, key: str, default: Any, choices: Mapping[str, Any]) -> Any:
        """The entry of `choices` that the config names."""
        value = self._value(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self._bad(key, value, "one of " + ", ".join(sorted(choices)))
        return choices[value]

    def section(self, key: str) -> "ConfigReader | None":
        """A nested object, None where it is absent or null."""
        value = self._value(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._bad(key, value, "an object")
        return ConfigReader(value, f"{key} in {self._name}")

    def require(self, key: str, value: Any) -> None:
        """A key that may be absent but has no other supported value than this one."""
        if self._value(key, value) != value:
            raise self._bad(key, self._config[key], str(value).lower())

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        """Refuse keys that nobody read. One that is null or false asks for nothing."""
        for key, value in self._config.items():
            if key not in self._read and key not in ignored and value is not None and value is not False:
                raise ModelLoadError(
                    f"{self._name} sets {key!r} to {value!r}, which this version does not know: it may change what "
                    "the model computes. Remove the key if it does not"
                )

    def _value(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._config.get(key)
        if value is None:
            if default is _REQUIRED:
                raise ModelLoadError(f"{self._name} lacks {key!r}")
            return default
        return value

    def _bad(self, key: str, value: Any, accepted: str) -> ModelLoadError:
        return ModelLoadError(f"{self._name} sets {key!r} to {value!r}; supported is {accepted}")


def read_rope(reader: ConfigReader, max_position_embeddings: int) -> tuple[float, RopeScaling | None]:
    """theta and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    theta = reader.number("rope_theta", 10000.0)
    old, new = reader.section("rope_scaling"), reader.section("rope_parameters")
    section = new or old
    if section is None:
        return theta, None
    theta = section.number("rope_theta", theta)
    section.require("partial_rotary_factor", 1.0)
    # Before 4.43 the type stood under "type"; both may be present.
    kind = section.choice("type", "default", _ROPE_TYPES)
    kind = section.choice("rope_type", kind, _ROPE_TYPES)
    scaling: RopeScaling | None = None
    if kind == "linear":
        scaling = LinearScaling(section.number("factor"))
    elif kind == "llama3":
        scaling = Llama3Scaling(
            factor=section.number("factor"),
            low_freq_factor=section.number("low_freq_factor"),
            high_freq_factor=section.number("high_freq_factor"),
            original_max_position_embeddings=section.integer(
                "original_max_position_embeddings", max_position_embeddings
            ),
        )
    section.finish()
    return theta, scaling


_ROPE_TYPES: Final = MappingProxyType({"default": "default", "linear": "linear", "llama3": "llama3"})
