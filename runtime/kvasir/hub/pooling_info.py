"""Reads how a model makes vectors or scores: its architecture, and the files of sentence-transformers.

modules.json lists the steps after the model (1_Pooling, 2_Dense, 2_Normalize), each with a config.json of its own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import read_bytes, read_json, read_json_if_any

Task = Literal["generate", "embed", "classify"]
GENERATE: Final = "generate"
EMBED: Final = "embed"
CLASSIFY: Final = "classify"


MODULES_FILE: Final = "modules.json"
POOLING_FILES: Final = (
    *(MODULES_FILE, "config_sentence_transformers.json", "sentence_bert_config.json"),
    "[0-9]_*/config.json",
)
CLASSIFIER: Final = "ForSequenceClassification"
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


@dataclass(frozen=True)
class PoolingInfo:
    task: Task
    """EMBED (a vector) or CLASSIFY (a score for each label)."""
    # Names of sentence-transformers, whose vectors are concatenated. None: the architecture's own.
    modes: tuple[str, ...] | None = None
    normalise: bool = True
    dense: tuple[DenseFiles, ...] = ()
    max_tokens: int | None = None
    """The longest input of the files; None: of config.json."""
    lowercase: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    """Texts to put before an input, by name."""
    default_prompt: str = ""
    dot_similarity: bool = False
    """Vectors are compared by their dot product instead of its cosine."""
    # Of Matryoshka vectors: the shorter lengths; () for any, None if vectors cannot be cut.
    cuts: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    activation: str = "identity"
    """Of scores: "sigmoid", "softmax" or "identity"."""


def read_pooling(path: Path, architecture: str, config: Mapping[str, Any], task: str) -> PoolingInfo | None:
    """Return None for a model that generates. Raises HubError. `task`: a value of --task."""
    task = _task(path, architecture, task)
    if task == GENERATE:
        return None
    labels = _labels(config) if task == CLASSIFY else ()
    file = path / MODULES_FILE
    if not file.exists() or task == CLASSIFY:
        return PoolingInfo(task, cuts=_cuts(config), labels=labels, activation=_activation(config, labels))
    modes: tuple[str, ...] | None = None
    dense: list[DenseFiles] = []
    normalise = False
    for kind, folder in _modules(file):
        if kind == "Pooling":
            modes = _modes(folder / "config.json")
        elif kind == "Dense":
            dense.append(_dense(folder))
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            raise HubError(
                f"{file}: a module {kind} is not supported: Transformer, Pooling, Dense and Normalize are"
            )
    extra = read_json_if_any(path / "config_sentence_transformers.json")
    max_tokens, lowercase = _input_form(path)
    return PoolingInfo(
        task,
        modes,
        normalise,
        tuple(dense),
        max_tokens,
        lowercase,
        prompts=_texts(extra.get("prompts")),
        default_prompt=str(extra.get("default_prompt_name") or ""),
        dot_similarity=extra.get("similarity_fn_name") in ("dot", "dot_product"),
        cuts=_cuts(config),
    )


def _task(path: Path, architecture: str, asked: str) -> Task:
    for task in (GENERATE, EMBED, CLASSIFY):
        if asked == task:
            return task
    if architecture.endswith(CLASSIFIER):
        return CLASSIFY
    generates = architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    pools = asked == "pool" or (not generates and architecture.endswith(("Model", "ForMaskedLM")))
    return EMBED if pools or (path / MODULES_FILE).exists() else GENERATE


def _modules(file: Path) -> list[tuple[str, Path]]:
    try:
        modules = json.loads(read_bytes(file))
        return [(each["type"].rpartition(".")[2], file.parent / each["path"]) for each in modules]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HubError(f"{file} is not a list of modules ({error!r}): download it again") from None


def _modes(file: Path) -> tuple[str, ...]:
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


def _dense(folder: Path) -> DenseFiles:
    config = read_json(folder / "config.json")
    inputs, outputs = config.get("in_features"), config.get("out_features")
    if not isinstance(inputs, int) or not isinstance(outputs, int):
        raise HubError(f"{folder / 'config.json'}: in_features and out_features must be whole numbers")
    activation = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    return DenseFiles(folder, inputs, outputs, bool(config.get("bias", True)), activation)


def _input_form(path: Path) -> tuple[int | None, bool]:
    """Return the longest input in tokens, and whether texts are lowercased."""
    for name in _LENGTH_FILES:
        config = read_json_if_any(path / name)
        if config:
            length = config.get("max_seq_length")
            return length if isinstance(length, int) and length > 0 else None, config.get("do_lower_case") is True
    return None, False


def _texts(prompts: Any) -> dict[str, str]:
    given = prompts.items() if isinstance(prompts, dict) else ()
    return {name: text for name, text in given if isinstance(text, str)}


def _cuts(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    listed = config.get("matryoshka_dimensions")
    if isinstance(listed, list) and listed and all(isinstance(each, int) for each in listed):
        return tuple(listed)
    return () if config.get("is_matryoshka") is True else None


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if isinstance(names, dict) and names:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    number = config.get("num_labels")
    return tuple(f"LABEL_{index}" for index in range(number if isinstance(number, int) else 2))


def _activation(config: Mapping[str, Any], labels: Sequence[str]) -> str:
    of_sentences = config.get("sentence_transformers")
    named = of_sentences.get("activation_fn") if isinstance(of_sentences, dict) else None
    named = named or config.get("sbert_ce_default_activation_function")
    if isinstance(named, str):
        name = named.rpartition(".")[2].lower()
        if name not in ("identity", "sigmoid", "softmax"):
            raise HubError(f"the activation {named} of scores is not supported: Identity, Sigmoid and Softmax are")
        return name
    if len(labels) == 1 or config.get("problem_type") == "multi_label_classification":
        return "sigmoid"
    return "identity" if config.get("problem_type") == "regression" else "softmax"
