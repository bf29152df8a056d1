"""PoolingInfo: how a model makes vectors or scores, by its architecture and files."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from kvasir.hub.hub_errors import HubError
from kvasir.hub.pooling.label_tokens import TOKENS_KEY, LabelTokens, tokens_of_config, tokens_of_module
from kvasir.hub.pooling.module_files import DenseFiles, dense_files, input_form, listed_modules, pooling_modes
from kvasir.hub.reading import read_json_if_any

log = logging.getLogger(__name__)

Task = Literal["generate", "embed", "classify"]
GENERATE: Final = "generate"
EMBED: Final = "embed"
CLASSIFY: Final = "classify"
TOKEN_CLASSIFY: Final = "token_classify"
MODULES_FILE: Final = "modules.json"
POOLING_FILES: Final = (
    *(MODULES_FILE, "config_sentence_transformers.json", "sentence_bert_config.json"),
    "[0-9]_*/config.json",
)
CLASSIFIER: Final = "ForSequenceClassification"
REWARD: Final = "ForRewardModel"
PROCESS_REWARD: Final = "ForProcessRewardModel"
_LOGITS: Final = "LogitScore"
_STEP_TAG: Final = 151651  # <extra_0> of Qwen2, at the end of each step


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
    dot_similarity: bool = False
    """Vectors are compared by their dot product instead of its cosine."""
    # Of Matryoshka vectors: the shorter lengths; () for any, None if vectors cannot be cut.
    cuts: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    # "sigmoid", "softmax" or "identity": of scores.
    activation: str = "identity"
    label_tokens: LabelTokens | None = None
    # A score for each token of an input, or for each token `step_tag`.
    by_token: bool = False
    step_tag: int | None = None

    def computes(self, task: str) -> bool:
        """Return whether the model computes a task of vLLM, which has a name of its own for scores of tokens."""
        return task == self.task or (self.by_token and task == TOKEN_CLASSIFY)


def read_pooling(
    path: Path, architecture: str, config: Mapping[str, Any], task: str, tokenizer: Path | None = None
) -> PoolingInfo | None:
    """Return None for a model that generates. Raises HubError. `task`: a value of --task."""
    file = path / MODULES_FILE
    modules = listed_modules(file) if file.exists() else []
    scores = next((folder for kind, folder in modules if kind == _LOGITS), None)
    task = _task(architecture, task, bool(modules), scores is not None or config.get(TOKENS_KEY) is not None)
    if task == GENERATE:
        return None
    if task == CLASSIFY:
        tokens = tokens_of_config(config, tokenizer or path)
        if tokens is None and scores is not None:
            tokens = tokens_of_module(scores / "config.json")
        return _classifier(architecture, config, tokens)
    if not modules:
        return PoolingInfo(task, cuts=_cuts(config))
    modes: tuple[str, ...] | None = None
    dense: list[DenseFiles] = []
    normalise = False
    for kind, folder in modules:
        if kind == "Pooling":
            modes = pooling_modes(folder / "config.json")
        elif kind == "Dense":
            dense.append(dense_files(folder))
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            raise HubError(
                f"{file}: a module {kind} is not supported: Transformer, Pooling, Dense and Normalize are"
            )
    extra = read_json_if_any(path / "config_sentence_transformers.json")
    if extra.get("default_prompt_name"):
        log.warning(
            "the model's default prompt %r is put before inputs only if a request asks for it by prompt_name",
            extra["default_prompt_name"],
        )
    max_tokens, lowercase = input_form(path)
    return PoolingInfo(
        task,
        modes,
        normalise,
        tuple(dense),
        max_tokens,
        lowercase,
        prompts=_texts(extra.get("prompts")),
        dot_similarity=extra.get("similarity_fn_name") in ("dot", "dot_product"),
        cuts=_cuts(config),
    )


def _classifier(architecture: str, config: Mapping[str, Any], tokens: LabelTokens | None) -> PoolingInfo:
    if architecture.endswith(PROCESS_REWARD):
        return PoolingInfo(
            CLASSIFY, labels=("bad", "good"), activation="softmax", by_token=True, step_tag=_STEP_TAG
        )
    if architecture.endswith(REWARD):
        return PoolingInfo(CLASSIFY, labels=("reward",), by_token=True)
    labels = _labels(config) if tokens is None else tokens.labels
    return PoolingInfo(
        CLASSIFY, cuts=_cuts(config), labels=labels, activation=_activation(config, labels), label_tokens=tokens
    )


def _task(architecture: str, asked: str, has_modules: bool, has_logits: bool) -> Task:
    for task in (GENERATE, EMBED, CLASSIFY):
        if asked == task:
            return task
    if has_logits or architecture.endswith((CLASSIFIER, REWARD, PROCESS_REWARD)):
        return CLASSIFY
    generates = architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    pools = asked == "pool" or (not generates and architecture.endswith(("Model", "ForMaskedLM")))
    return EMBED if pools or has_modules else GENERATE


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
        if not all(str(key).isdecimal() for key in names):
            raise HubError(f"id2label of config.json has the keys {list(names)[:5]}: they must be numbers from 0")
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
