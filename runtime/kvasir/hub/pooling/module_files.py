"""Reads the files of sentence-transformers.

modules.json lists the steps after the model (1_Pooling, 2_Dense, 2_Normalize), each with a config.json of its own.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import read_bytes, read_json, read_json_if_any

_LENGTH_FILES: Final = (
    *("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json"),
    *("sentence_camembert_config.json", "sentence_albert_config.json", "sentence_xlm-roberta_config.json"),
    "sentence_xlnet_config.json",
)
_MODES: Final = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
)


@dataclass(frozen=True)
class DenseFiles:
    """A linear layer after pooling, in a directory of its own."""

    path: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str  # the last part of torch's class name: "Tanh", "Identity"


def listed_modules(file: Path) -> list[tuple[str, Path]]:
    try:
        modules = json.loads(read_bytes(file))
        return [(each["type"].rpartition(".")[2], file.parent / each["path"]) for each in modules]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HubError(f"{file} is not a list of modules ({error!r}): download it again") from None


def pooling_modes(file: Path) -> tuple[str, ...]:
    config = read_json(file)
    if config.get("include_prompt") is False:
        raise HubError(f"{file}: include_prompt false is not supported: vectors would include the prompt's tokens")
    named = config.get("pooling_mode")
    modes = [name for key, name in _MODES.items() if config.get(key)]
    if named is not None:  # the newer form: one name, or a list
        modes = [named] if isinstance(named, str) else list(named)
    if not modes or not set(modes) <= set(_MODES.values()):
        raise HubError(f"{file} sets the pooling to {modes}: supported are {', '.join(_MODES.values())}")
    return tuple(modes)


def dense_files(folder: Path) -> DenseFiles:
    config = read_json(folder / "config.json")
    inputs, outputs = config.get("in_features"), config.get("out_features")
    if not isinstance(inputs, int) or not isinstance(outputs, int):
        raise HubError(f"{folder / 'config.json'}: in_features and out_features must be whole numbers")
    activation = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    return DenseFiles(folder, inputs, outputs, bool(config.get("bias", True)), activation)


def input_form(path: Path) -> tuple[int | None, bool]:
    """Return the longest input in tokens, and whether texts are lowercased."""
    for name in _LENGTH_FILES:
        config = read_json_if_any(path / name)
        if config:
            length = config.get("max_seq_length")
            return length if isinstance(length, int) and length > 0 else None, config.get("do_lower_case") is True
    return None, False
