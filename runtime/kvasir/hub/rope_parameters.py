"""One normal form for the rotary embedding's settings of config.json and --hf-overrides.

Files have `rope_parameters` (transformers 5), or `rope_theta`, `rope_scaling` and `partial_rotary_factor`, or both.
The normal form is `rope_parameters`: an object, or one per kind of layer. As in transformers, `rope_scaling` wins
over `rope_parameters`, and both win over the fields next to them.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from kvasir.hub.hub_errors import HubError

ROPE_KEYS: Final = frozenset(
    ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rope_local_base_freq")
)
FULL, SLIDING = "full_attention", "sliding_attention"
# kept when another kind of scaling is chosen
_OF_ANY_KIND: Final = frozenset(("rope_theta", "partial_rotary_factor"))
# two kinds of layers, however the file writes it
_BY_LAYER: Final = frozenset(("Gemma3ForCausalLM", "Olmo3ForCausalLM"))


def has_sections(values: Mapping[str, Any]) -> bool:
    nested = any(isinstance(entry, dict) for entry in _object(values, "rope_parameters").values())
    by_layer = not _BY_LAYER.isdisjoint(values.get("architectures") or ())
    return nested or by_layer or values.get("rope_local_base_freq") is not None


def rope_parameters(values: Mapping[str, Any], by_layer: bool | None = None) -> dict[str, Any]:
    """Return a config's settings in the normal form, without the architecture's defaults.

    >>> rope_parameters({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}})
    {'factor': 2.0, 'rope_type': 'linear', 'rope_theta': 1000000.0}
    """
    old, new = _section(_object(values, "rope_scaling")), _section(_object(values, "rope_parameters"))
    if not (has_sections(values) if by_layer is None else by_layer):
        return _with_defaults(old or new, values, "rope_theta", "partial_rotary_factor")
    full, sliding = _section(_object(new, FULL)), _section(_object(new, SLIDING))
    rest = {name: value for name, value in new.items() if name not in (FULL, SLIDING)}
    full = _with_defaults(full | old, values, "rope_theta", "partial_rotary_factor")
    local = {"rope_theta": values.get("rope_local_base_freq")}
    return rest | {FULL: full, SLIDING: _with_defaults(sliding, local, "rope_theta")}


def override_rope(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the overridden rotation fields, in the normal form."""
    if ROPE_KEYS.isdisjoint(overrides):
        return dict(values)
    by_layer = has_sections(values)
    before, asked = rope_parameters(values), rope_parameters(_flat_for_full(overrides, by_layer), by_layer)
    if by_layer:
        parts = {name: _overridden(before[name], asked[name], overrides) for name in (FULL, SLIDING)}
        if "rope_parameters" not in overrides:
            parts[SLIDING] = _overridden(before[SLIDING], asked[SLIDING], {})
        result = before | asked | parts
    else:
        result = _overridden(before, asked, overrides)
    kept = {name: value for name, value in values.items() if name not in ROPE_KEYS}
    if not by_layer and overrides.get("rope_local_base_freq") is not None:
        kept["rope_local_base_freq"] = overrides["rope_local_base_freq"]
    return kept | {"rope_parameters": result}


def extended_context(positions: int, values: Mapping[str, Any]) -> int:
    """Return a model's positions with its scaling. As in vLLM, YaRN and linear scaling extend the context."""
    if has_sections(values):  # Gemma 3 counts the scaling in max_position_embeddings
        return positions
    section = rope_parameters(values)
    kind, factor = section.get("rope_type"), section.get("factor")
    if kind not in ("yarn", "linear") or not isinstance(factor, int | float) or not math.isfinite(factor):
        return positions  # the factor is rejected at load
    original = section.get("original_max_position_embeddings") if kind == "yarn" else None
    if not isinstance(original, int):
        original = positions
    return max(positions, int(original * factor))


def _overridden(
    before: Mapping[str, Any], asked: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    # null removes a field; fields of one kind of scaling mean nothing to another
    removed = [name for name in ("rope_scaling", "rope_parameters") if name in overrides and not overrides[name]]
    kind = before.get("rope_type", "default")
    if removed or asked.get("rope_type", kind) != kind:
        kept = frozenset() if "rope_parameters" in removed else _OF_ANY_KIND
        before = {name: value for name, value in before.items() if name in kept}
    nulls = {name for name in _OF_ANY_KIND if name in overrides and overrides[name] is None and name not in asked}
    both = {**{name: value for name, value in before.items() if name not in nulls}, **asked}
    return {name: value for name, value in both.items() if value is not None}


def _flat_for_full(overrides: Mapping[str, Any], by_layer: bool) -> Mapping[str, Any]:
    # overrides without a kind of layer are for full attention
    new = _object(overrides, "rope_parameters")
    flat = {name: value for name, value in new.items() if name not in (FULL, SLIDING)}
    if not by_layer or not flat:
        return overrides
    return {**overrides, "rope_parameters": {FULL: flat | _object(new, FULL), SLIDING: _object(new, SLIDING)}}


def _with_defaults(section: dict[str, Any], values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    absent = {name: values[name] for name in names if section.get(name) is None and values.get(name) is not None}
    return section | absent


def _section(values: dict[str, Any]) -> dict[str, Any]:
    # `type` until transformers 4.43
    if "type" not in values:
        return dict(values)
    result = {name: value for name, value in values.items() if name != "type"}
    return result if result.get("rope_type") is not None else result | {"rope_type": values["type"]}


def _object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = values.get(name)
    if value and not isinstance(value, dict):
        raise HubError(f"{name} is {value!r}, it must be an object")
    return value or {}
