"""Reads the rotary embedding's settings, in the normal form of `kvasir.hub.rope_parameters`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvasir.layers.attention import HeadShape
from kvasir.layers.rotary import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)
from kvasir.models.config_reader import REQUIRED, ConfigReader
from kvasir.models.model_load_error import ModelLoadError

TYPES: Final = frozenset(("default", "dynamic", "linear", "llama3", "longrope", "yarn"))


@dataclass(frozen=True)
class RopeDefaults:
    """The rotation of an architecture if config.json has no settings."""

    head_dim: int
    max_position_embeddings: int
    theta: float = 10000.0
    # The rotated share of each head; None: always the whole head.
    partial: float | None = None
    # None: it is among the scaling's values.
    original_max_position_embeddings: int | None = None
    # Supported kinds of scaling, as in config.json.
    types: frozenset[str] = TYPES


def read_rope(
    reader: ConfigReader, heads: HeadShape, *, longest: Any = REQUIRED, interleaved: bool = False, **defaults: Any
) -> Rope:
    """Read the rotation of all layers. `longest` and `defaults` (see RopeDefaults) are for absent keys."""
    positions = reader.integer("max_position_embeddings", longest)
    rope = rope_of(reader.rope(by_layer=False), RopeDefaults(heads.head_dim, positions, **defaults))
    return replace(rope, interleaved=interleaved)


def read_ropes(reader: ConfigReader, kinds: Mapping[str, RopeDefaults]) -> dict[str, Rope]:
    """Read the rotation of each kind of layer."""
    sections = reader.rope(by_layer=True)
    ropes = {kind: rope_of(sections.part(kind), defaults) for kind, defaults in kinds.items()}
    sections.finish()
    return ropes


def rope_of(section: ConfigReader, defaults: RopeDefaults) -> Rope:
    # Raises ModelLoadError.
    theta = section.number("rope_theta", defaults.theta)
    dim = _rotated(defaults, _partial(section, defaults.partial))
    kind = section.choice("rope_type", "default", {name: name for name in defaults.types})
    scaling = _scaling(kind, section, dim, defaults)
    if section.is_set("factor") and not section.is_set("rope_type"):
        raise ModelLoadError(
            "config.json has a factor for rotary positions without a rope_type: add that, or remove it"
        )
    section.finish(frozenset(("original_max_position_embeddings",)))  # also for kinds that do not read it
    return Rope(dim, theta, scaling)


def _partial(reader: ConfigReader, default: float | None) -> float | None:
    if default is None:
        reader.require("partial_rotary_factor", 1.0)
        return None
    return reader.number("partial_rotary_factor", default)


def _rotated(defaults: RopeDefaults, partial: float | None) -> int:
    dim = int(defaults.head_dim * (1.0 if partial is None else partial))
    if not 0 < dim <= defaults.head_dim or dim % 2:
        raise ModelLoadError(
            f"config.json has rotary positions turn {dim} of the {defaults.head_dim} numbers of a head "
            "(head_dim, partial_rotary_factor); that must be an even number within the head"
        )
    return dim


def _scaling(kind: str, section: ConfigReader, dim: int, defaults: RopeDefaults) -> RopeScaling | None:
    if kind == "default":
        return None
    if kind == "dynamic":
        # Changes only sequences beyond max_position_embeddings, which no request reaches.
        section.number("factor")
        return None
    if kind == "linear":
        return LinearScaling(section.number("factor"))
    if kind == "ntk":
        section.require("mixed_b", None)
        return NTKScaling(section.number("factor"))
    longest = defaults.max_position_embeddings
    original = section.integer("original_max_position_embeddings", longest)
    original = defaults.original_max_position_embeddings or original
    if kind == "llama3":
        return Llama3Scaling(
            factor=section.number("factor"),
            low_freq_factor=section.number("low_freq_factor"),
            high_freq_factor=section.number("high_freq_factor"),
            original_max_position_embeddings=original,
        )
    if kind == "yarn":
        return _yarn(section, original)
    factor = section.number("factor", longest / original)
    stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    stretched = section.number("long_mscale", stretched)  # of Phi-3.5-MoE
    section.require("short_mscale", stretched)
    return LongRopeScaling(
        short_factors=section.numbers("short_factor", dim // 2),
        long_factors=section.numbers("long_factor", dim // 2),
        original_max_position_embeddings=original,
        attention_factor=section.number("attention_factor", stretched),
    )


def _yarn(section: ConfigReader, original: int) -> YarnScaling:
    factor = section.number("factor")
    mscale, mscale_all_dim = (
        section.number(name) if section.is_set(name) else None for name in ("mscale", "mscale_all_dim")
    )
    if mscale and mscale_all_dim:
        attention_factor = _amplitude(factor, mscale) / _amplitude(factor, mscale_all_dim)
    else:
        attention_factor = _amplitude(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
        attention_factor=section.number("attention_factor", attention_factor),
    )


def _amplitude(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
