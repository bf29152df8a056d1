"""A model's configuration, read without torch; the same for frontends and engines."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvasir.hub.hub_errors import HubError, ModelNotFound
from kvasir.hub.reading import read_json, read_json_if_any
from kvasir.hub.tokenizer_files import canonical_json, tokenizer_hash
from kvasir.params import BOUNDS

_DTYPES = ("float32", "bfloat16", "float16")
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_WIDTHS = ("hidden_size", "n_embd")


@dataclass(frozen=True)
class ModelInfo:
    path: Path
    """The directory that holds it."""
    architecture: str
    """The model's class, LlamaForCausalLM for example."""
    config: dict[str, Any]
    """config.json as it is."""
    dtype: str
    """float32, bfloat16 or float16: what the weights were saved in."""
    max_model_len: int
    """Tokens that the model has positions for."""
    vocab_size: int
    width: int | None
    """Of the hidden states; None where config.json calls it by no name known here."""
    eos_token_ids: tuple[int, ...]
    """Each of them ends a text."""
    generation_defaults: dict[str, float | int]
    """Those of temperature, top_p, top_k, min_p and repetition_penalty that generation_config.json sets; top_k 0
    keeps all tokens."""
    fingerprint: str
    """32 hex digits, different for different models."""
    tokenizer_hash: str
    """32 hex digits, different for different tokenizers."""
    tokenizer: Path | None = None
    """The directory with the tokenizer and the chat template; None: `path`."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """The fields of `config` that --hf-overrides gave."""
    weights: str = ""
    """Their identity (weights_identity.py); "" before they are on this machine, and in frontends."""

    @property
    def tokenizer_path(self) -> Path:
        return self.tokenizer or self.path


@dataclass(frozen=True)
class ModelFiles:
    """What the options of a model set next to its own directory, or instead of it."""

    tokenizer: Path | None = None
    generation: Path | None = None
    """Another directory with generation_config.json."""
    no_generation: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)
    generation_overrides: dict[str, Any] = field(default_factory=dict)


_OWN_FILES: Final = ModelFiles()
GENERATION_FILE: Final = "generation_config.json"


def load_model_info(path: Path, files: ModelFiles = _OWN_FILES) -> ModelInfo:
    """Reads config.json and generation_config.json. Raises HubError, which names the file and the field."""
    config = _Config(path / "config.json", overrides=files.overrides, option="--hf-overrides")
    generation = _Config(
        (files.generation or path) / GENERATION_FILE,
        optional=files.generation is None,
        skipped=files.no_generation,
        overrides=files.generation_overrides,
        option="--override-generation-config",
    )
    if not _only_kv_cache(config.get("quantization_config")):
        raise HubError(f"{config.file}: quantization_config: quantised checkpoints are not supported")
    return ModelInfo(
        path=path,
        architecture=_architecture(config),
        config=config.values,
        dtype=_dtype(config),
        max_model_len=config.count(*_LENGTHS),
        vocab_size=config.count("vocab_size"),
        width=config.count(*_WIDTHS) if config.get(*_WIDTHS) is not None else None,
        eos_token_ids=_eos_token_ids(generation) or _eos_token_ids(config),
        generation_defaults=_generation_defaults(generation),
        fingerprint=_fingerprint(path, config.values),
        tokenizer_hash=tokenizer_hash(files.tokenizer or path),
        tokenizer=files.tokenizer,
        overrides=files.overrides,
    )


class _Config:
    """One of the JSON files, with messages that name it and the field.

    Models that take more than text keep what describes their language model in `text_config`.
    """

    def __init__(
        self,
        file: Path,
        optional: bool = False,
        skipped: bool = False,
        overrides: Mapping[str, Any] = _NONE,
        option: str = "",
    ) -> None:
        """`option`: what `overrides` come from."""
        if not optional and not skipped and not file.exists():
            if file.name == GENERATION_FILE:
                message = f"--generation-config: {file.parent} has no {file.name}: give auto, vllm, or a directory "
                raise ModelNotFound(message + "that has it")
            raise ModelNotFound(
                f"{file.parent} holds no model: it has no {file.name}; give the directory that holds {file.name} "
                "and the weights"
            )
        self.file = file
        self._overrides, self._option = overrides, option
        values = {} if skipped else read_json_if_any(file) if optional else read_json(file)
        self.values = merged(values, overrides)
        text = self.values.get("text_config")
        self._parts = (text, self.values) if isinstance(text, dict) else (self.values,)

    def get(self, *names: str) -> Any:
        """The first of these fields that is there and not null, else None."""
        for part in self._parts:
            for name in names:
                if part.get(name) is not None:
                    return part[name]
        return None

    def count(self, *names: str) -> int:
        value = self.get(*names)
        if not _is_int(value) or value < 1:
            raise self.error(names[0], value, "a whole number above 0")
        return int(value)

    def error(self, name: str, value: Any, wanted: str) -> HubError:
        found = "is missing" if value is None else f"is {value!r}"
        place = self._option if name in self._overrides else self.file
        return HubError(f"{place}: {name} {found}, it must be {wanted}")


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON with fields replaced; those of nested objects one by one."""
    result = dict(values)
    for name, value in overrides.items():
        before = result.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        result[name] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def _only_kv_cache(quantization: Any) -> bool:
    """Return whether a quantization_config is absent, or has only scales of the KV cache, as llm-compressor writes
    it: weights and activations are in groups."""
    if not quantization:
        return True
    return isinstance(quantization, dict) and (
        quantization.get("quant_method") == "compressed-tensors"
        and bool(quantization.get("kv_cache_scheme"))
        and not quantization.get("config_groups")
    )


def _architecture(config: _Config) -> str:
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.error("architectures", names, 'a list with the model\'s class, such as ["LlamaForCausalLM"]')
    return names[0]


def _dtype(config: _Config) -> str:
    value = config.get("dtype", "torch_dtype")
    if value is None:
        return "float32"
    name = str(value).removeprefix("torch.")
    if name not in _DTYPES:
        raise config.error("dtype", value, f"one of {', '.join(_DTYPES)}")
    return name


def _eos_token_ids(config: _Config) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(_is_int(token_id) and token_id >= 0 for token_id in ids):
        raise config.error("eos_token_id", value, "a token id or a list of them")
    return tuple(dict.fromkeys(ids))


def _generation_defaults(config: _Config) -> dict[str, float | int]:
    defaults: dict[str, float | int] = {}
    for name in SAMPLING_DEFAULTS:
        if (value := config.get(name)) is not None:
            fits = _is_int if name == "top_k" else _is_number
            if not (fits(value) and value in BOUNDS[name]):
                raise config.error(name, value, str(BOUNDS[name]))
            defaults[name] = value if name == "top_k" else float(value)
    return defaults


def _fingerprint(path: Path, config: dict[str, Any]) -> str:
    """Of what both sides have: frontends never see the weights, so their index and commit stand for them."""
    commit = path.name if path.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", path.name) else ""
    index = read_json_if_any(path / "model.safetensors.index.json")
    return hashlib.sha256(canonical_json([config, index, commit])).hexdigest()[:32]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SAMPLING_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling parameters that generation_config.json may set for requests that leave them out."""
