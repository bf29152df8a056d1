"""AdapterConfig: the fields of adapter_config.json that change results. Unsupported ones are refused by name."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import read_json

T = TypeVar("T")
CONFIG_FILE: Final = "adapter_config.json"
MAX_REPEATS: Final = 3  # in a pattern: re backtracks for hours through more, or through a repeated group
# These start from the model's own weights; others, such as pissa, change them.
_PLAIN_STARTS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
# For training, or repeated by the names of the tensors.
_NO_EFFECT: Final = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config"),
        *("exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform"),
        *("loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_version", "qalora_group_size"),
        *("revision", "target_modules", "task_type", "runtime_config", "velora_config"),
    )
)
_ADVICE: Final = {
    "lora_bias": "train without biases of the adapter",
    "modules_to_save": "whole layers are not adapters: train without it",
    "target_parameters": "experts of a mixture are not adapted: choose target_modules",
    "trainable_token_indices": "embeddings are not adapted: train without it",
    "use_dora": "merge it into the model where peft is installed, or train without DoRA",
}


@dataclass(frozen=True)
class AdapterConfig:
    rank: int
    alpha: float
    base_model: str  # base_model_name_or_path
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    use_rslora: bool

    def rank_of(self, module: str) -> int:
        """Return the rank of a module by its name in the model."""
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """Return the factor of the module's product B A.

        >>> AdapterConfig(16, 32, "", {}, {}, use_rslora=False).scaling_of("q_proj")
        2.0
        """
        rank = self.rank_of(module)
        return _by_pattern(self.alpha_pattern, module, self.alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def read_config(path: Path) -> AdapterConfig:
    """Return the config of a directory. Raises HubError."""
    file = path / CONFIG_FILE
    if not file.exists():
        raise HubError(f"{path} holds no adapter: it has no {CONFIG_FILE}; give the directory that PEFT saved")
    values = read_json(file)
    kind = values.pop("peft_type", None)
    if kind != "LORA":
        raise HubError(f"{file}: peft_type is {kind!r}, and only LORA adapters are supported")
    try:
        config = AdapterConfig(
            rank=_positive(values.pop("r", 8)),
            alpha=_number(values.pop("lora_alpha", 8)),
            base_model=str(values.get("base_model_name_or_path") or ""),
            rank_pattern=_pattern(values.pop("rank_pattern", None), _positive),
            alpha_pattern=_pattern(values.pop("alpha_pattern", None), _number),
            use_rslora=values.pop("use_rslora", False) is True,
        )
    except (ValueError, TypeError, AttributeError, OverflowError, re.error) as error:
        raise HubError(f"{file}: r, lora_alpha or their patterns cannot be read: {error}") from None
    _refuse_rest(file, values)
    return config


def _refuse_rest(file: Path, values: Mapping[str, Any]) -> None:
    start = values.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise HubError(
            f"{file}: init_lora_weights {start!r} changes the model's own weights: convert the adapter to plain "
            "LoRA (path_initial_model_for_weight_conversion in PEFT)"
        )
    if (bias := values.get("bias", "none")) != "none":
        raise HubError(f"{file}: bias {bias!r} is not supported: train with bias none")
    for name, value in values.items():
        if name in _NO_EFFECT or name in ("init_lora_weights", "bias") or not value or value == "megatron.core":
            continue
        advice = _ADVICE.get(name, "train without it, or merge the adapter into the model where peft is installed")
        raise HubError(f"{file}: {name} is not supported: {advice}")


def _by_pattern(pattern: Mapping[str, T], module: str, default: T) -> T:
    for key, value in pattern.items():
        if _ending_in(key).match(module):
            return value
    return default


def _ending_in(key: str) -> re.Pattern[str]:
    # as PEFT: the first that matches the whole name, or its end from a dot on
    if re.search(r"\)[*+{]", key) or len(re.findall(r"[*+{]", key)) > MAX_REPEATS:
        raise ValueError(f"the pattern {key!r} repeats a group, or has more than {MAX_REPEATS} of * + and {{")
    return re.compile(rf"(.*\.)?({key})$")


def _pattern(values: Any, read: Callable[[Any], T]) -> Mapping[str, T]:
    for key in values or {}:
        _ending_in(key)
    return {key: read(value) for key, value in (values or {}).items()}


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a rank")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
