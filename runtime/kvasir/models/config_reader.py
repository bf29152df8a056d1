"""Reads config.json strictly: every key is used, known to be without effect on inference, or refused by name."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from kvasir.models.model_load_error import ModelLoadError

T = TypeVar("T")

NO_EFFECT: Final = frozenset((
    # bookkeeping
    "_commit_hash", "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "license", "model_type", "num_labels", "prefix", "problem_type",
    "task_specific_params", "tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_version",
    # kvasir.hub accepts one for the KV cache only
    "quantization_config",
    # how transformers runs or trains the model
    "_attn_implementation_autoset", "_flash_attn_2_enabled", "attention_dropout", "attn_implementation",
    "attn_pdrop", "chunk_size_feed_forward", "embd_pdrop", "finetuning_task", "hidden_dropout", "initializer_range",
    "cache_implementation", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "pretraining_tp", "resid_pdrop", "return_dict", "router_aux_loss_coef", "tf_legacy_loss", "torchscript",
    "use_bfloat16", "use_cache",
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
    """Typed access to config.json that remembers which keys were read; `finish` refuses the rest."""

    def __init__(self, config: Mapping[str, Any], name: str = "config.json") -> None:
        self._config = config
        self._name = name
        self._read: set[str] = set()

    def integer(self, key: str, default: Any = _REQUIRED, least: int = 1) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._bad(key, value, f"a whole number, {least} or more")
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

    def optional(self, read: Callable[[str], T], key: str, default: T | None) -> T | None:
        """What `read` finds under a key; null means None here, and an absent key means `default`."""
        self._read.add(key)
        if key not in self._config:
            return default
        return None if self._config[key] is None else read(key)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, empty where it is absent."""
        value = self._value(key, [])
        if not isinstance(value, list) or not all(type(entry) is int and entry >= 0 for entry in value):
            raise self._bad(key, value, "a list of whole numbers")
        return tuple(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        value = self._value(key, _REQUIRED)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(type(entry) in (int, float) and entry > 0 for entry in value)
        ):
            raise self._bad(key, value, f"a list of {count} numbers above 0")
        return tuple(map(float, value))

    def choices(self, key: str, count: int, choices: Mapping[str, T]) -> tuple[T, ...] | None:
        """A list of `count` names, as the entries of `choices` that it names; None where it is absent."""
        value = self._value(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or not all(entry in choices for entry in value):
            raise self._bad(key, value, f"a list of {count} entries, each one of " + ", ".join(sorted(choices)))
        return tuple(choices[entry] for entry in value)

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
            raise self._bad(key, self._config[key], json.dumps(value))

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        """Refuse keys that were not read, unless they are null or false."""
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
