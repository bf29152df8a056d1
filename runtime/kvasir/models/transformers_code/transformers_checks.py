"""Rejects models that transformers' code cannot serve here, before any weights are read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.registry import ARCHITECTURES

_LAYER_TYPES = frozenset(("full_attention", "sliding_attention"))
# Its angles follow the longest sequence of a batch. Those of "dynamic" do so beyond max_position_embeddings only.
_CHANGING_ROPES = frozenset(("longrope",))


def unsupported(architecture: str, reason: str) -> ModelLoadError:
    own = "cannot be used either" if architecture in ARCHITECTURES else "is needed and cannot be used"
    return ModelLoadError(f"transformers' code for {architecture} {own}: {reason}")


def find_class(architecture: str) -> type[transformers.PreTrainedModel]:
    # Raises ModelLoadError if the class is missing or not a causal LM.
    names: set[str] = set()
    for entry in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        names.update((entry,) if isinstance(entry, str) else entry)
    if architecture not in names:
        known = hasattr(transformers, architecture)
        raise unsupported(
            architecture,
            "it is not a model that predicts the next token"
            if known
            else f"transformers {transformers.__version__} has none, and code from the model's own repository is "
            "never run",
        )
    found: type[transformers.PreTrainedModel] = getattr(transformers, architecture)
    return found


def check_config(architecture: str, config: transformers.PreTrainedConfig) -> None:
    # Raises ModelLoadError with the reason.
    for reason in _reasons(config):
        raise unsupported(architecture, reason)


def hidden_windows(config: transformers.PreTrainedConfig, windows: Sequence[int | None]) -> bool:
    """Return whether only masks apply a window; `windows` are those passed to attention."""
    types = getattr(config, "layer_types", None) or ["full_attention"] * len(windows)
    hidden = [index for index, kind in enumerate(types) if kind == "sliding_attention" and windows[index] is None]
    is_on = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", None) is not False
    return bool(hidden or (is_on and not any(windows)))


def why_not_paged(
    model_class: type[transformers.PreTrainedModel], config: transformers.PreTrainedConfig
) -> Iterator[str]:
    """Yield the reasons for which our paged cache cannot serve the model."""
    if model_class._is_stateful:
        yield "it keeps a recurrent state"
    types = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if types:
        yield f"it has layers of {', '.join(sorted(types))}"
    if not model_class._supports_attention_backend:
        yield "its attention cannot be replaced (_supports_attention_backend is not set)"


def _reasons(config: transformers.PreTrainedConfig) -> Iterator[str]:
    if config.get_text_config() is not config:
        yield "it takes more than text"
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        yield "it has an encoder or cross-attention"
    both_ways = getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision")
    if both_ways or not getattr(config, "is_causal", True):
        yield "its attention is not causal"
    ropes = _rope_types(getattr(config, "rope_parameters", None)) & _CHANGING_ROPES
    if ropes:
        yield f"rope_type {', '.join(sorted(ropes))} changes with the longest request of a batch"


def _rope_types(parameters: Mapping[str, Any] | None) -> set[str]:
    if not parameters:
        return set()
    sections = [section for section in parameters.values() if isinstance(section, Mapping)] or [parameters]
    return {str(section.get("rope_type")) for section in sections}
