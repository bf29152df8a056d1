"""Fetches the files of a model, and reads them with the options that change them."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from kvasir.config.settings import ModelConfig
from kvasir.hub.generation_config import MAX_NEW_TOKENS, SAMPLING_DEFAULTS
from kvasir.hub.hub_errors import HubError
from kvasir.hub.model_info import GENERATION_FILE, ModelFiles, ModelInfo, load_model_info
from kvasir.hub.source import fetch, normalise
from kvasir.hub.weights_identity import weights_identity

_OF_THE_MODEL: Final = "auto"
_NOWHERE: Final = "vllm"
_READ: Final = (*SAMPLING_DEFAULTS, "eos_token_id", MAX_NEW_TOKENS)
_WITHOUT_EFFECT: Final = ("bos_token_id", "do_sample", "pad_token_id", "transformers_version")


def read_model(config: ModelConfig, path: Path | None = None) -> ModelInfo:
    """Return the model's info; fetch config and tokenizer without a `path`. Raises HubError."""
    if path is None:
        path = fetch(normalise(config.source), weights=False, download_dir=config.download_dir)
    info = load_model_info(path, _files(config))
    return dataclasses.replace(info, notes=info.notes + _unused(config))


def fetch_weights(
    model: ModelInfo, config: ModelConfig, load_format: str, progress: Callable[[int, int], None]
) -> ModelInfo:
    """Fetch the weights, and return the model with their identity ("" if broken).

    Raises HubError, also if the source has changed since. `progress`: see `fetch`.
    """
    source, is_dummy = normalise(config.source), load_format == "dummy"
    path = fetch(source, weights=not is_dummy, download_dir=config.download_dir, progress=progress)
    if path != model.path:
        raise HubError(f"{source} changed during the start: {path} is not {model.path}; start it again")
    try:
        return replace(model, weights=load_format if is_dummy else weights_identity(path))
    except HubError:  # loading reports it, after the checks that need no weights
        return model


def _files(config: ModelConfig) -> ModelFiles:
    tokenizer, generation = config.tokenizer, config.generation_config
    fetched = partial(_fetched, download_dir=config.download_dir)
    elsewhere = generation not in (_OF_THE_MODEL, _NOWHERE)
    return ModelFiles(
        tokenizer=None if tokenizer is None else fetched("--tokenizer", tokenizer, "the tokenizer's files"),
        generation=fetched("--generation-config", generation, GENERATION_FILE) if elsewhere else None,
        no_generation=generation == _NOWHERE,
        overrides=json.loads(config.hf_overrides),
        generation_overrides=json.loads(config.override_generation_config),
        task=config.task,
        quantization=config.quantization,
    )


def _unused(config: ModelConfig) -> tuple[str, ...]:
    given = json.loads(config.override_generation_config)
    names = [name for name in given if name not in (*_READ, *_WITHOUT_EFFECT)]
    fields = ", ".join(_READ)
    return tuple(f"--override-generation-config: {name} has no effect; the fields are {fields}" for name in names)


def _fetched(option: str, source: str, content: str, *, download_dir: str | None) -> Path:
    try:
        return fetch(normalise(source), weights=False, download_dir=download_dir, content=content)
    except HubError as error:
        raise type(error)(f"{option}: {error}") from error
