"""The sampling kernels for tools/compile_kernels.py: variants, types and constants."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kvasir.kernels.triton.sampling.sizes import (
    ENTRIES,
    IN_OUTPUT,
    OPTIONS,
    PART_TOKENS,
    SEARCH_WARPS,
    limit_constants,
    padded_parts,
    pick_constants,
    race_constants,
    scale_constants,
)
from tools.kernel_targets import Source, Target, Variant

# Qwen 3. Only the number of parts of a row depends on it.
VOCAB: Final = 151_936


@dataclass(frozen=True)
class SamplingVariant(Variant):
    kernel: str
    # Of the logits; "" for kernels that do not load them.
    dtype: str
    constants: Mapping[str, object] = field(hash=False)
    # Tensors that a launch passes as None.
    absent: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.kernel, self.dtype, self.note) if part)

    def source(self, target: Target) -> Source:
        constants = {**self.constants, **dict.fromkeys(self.absent)}
        options = {**OPTIONS, "num_warps": SEARCH_WARPS} if self.kernel == "limits" else {**OPTIONS}
        kernel = _kernels()[self.kernel]
        return Source.of(kernel, constants, _TYPES, self.dtype, divisible=_DIVISIBLE, options=options)


# Multiples of 16 in launches for most vocabularies.
_DIVISIBLE: Final = ("stride", "scaled_stride", "saved_stride", "counts_stride")
_TYPES: Final = MappingProxyType(
    {
        **dict.fromkeys(("best", "chosen", "rows", "slots", "tokens", "seeds", "positions", "top_k"), "*i64"),
        **dict.fromkeys(("limit_keys", "limit_ids", "largest", "words", "left", "counts"), "*i32"),
        **dict.fromkeys(("temperature", "scaled", "log_min_p", "saved", "added"), "*fp32"),
        **dict.fromkeys(("vocab", "parts", "num_words", "num_entries"), "i32"),
        **dict.fromkeys(_DIVISIBLE, "i32"),
        **dict.fromkeys(("top_p", "penalties"), "*fp64"),
    }
)


def sampling_variants() -> Iterator[SamplingVariant]:
    limits, draw = ("limit_keys", "limit_ids"), ("temperature", "seeds", "positions")
    for dtype in ("bf16", "fp16", "fp32"):
        yield SamplingVariant("race", dtype, _race(), ("rows", *draw, *limits), "greedy")
        yield SamplingVariant("race", dtype, _race(random=True), limits, "random")
        yield SamplingVariant("race", dtype, _race(random=True, limited=True), (), "random min-p")
        yield SamplingVariant("scale", dtype, scale_constants(stored=True))
    scaled = _race(random=True, scaled=True, limited=True)
    yield SamplingVariant("race", "fp32", scaled, ("rows", "temperature"), "random filtered")
    floor, both = _limits(floored=True, filtered=False), _limits(floored=True, filtered=True)
    yield SamplingVariant("limits", "", floor, ("scaled", "top_k", "top_p"), "min-p")
    yield SamplingVariant("limits", "", _limits(floored=False, filtered=True), ("log_min_p",), "top-k top-p")
    yield SamplingVariant("limits", "", both, (), "min-p top-k top-p")
    yield SamplingVariant("pick", "", pick_constants(VOCAB, indexed=True))
    part: dict[str, object] = {"PART_TOKENS": PART_TOKENS}
    yield SamplingVariant("mask", "fp32", part)
    yield SamplingVariant("left", "fp32", part)
    yield SamplingVariant("restore", "fp32", {**part, "PADDED_PARTS": padded_parts(VOCAB)})
    yield SamplingVariant("bias", "fp32", {"ENTRIES": ENTRIES})
    yield SamplingVariant("penalties", "fp32", {**part, "IN_OUTPUT": IN_OUTPUT})


def _kernels() -> dict[str, Any]:
    from kvasir.kernels.triton.sampling.filters import find_limits, scale_rows
    from kvasir.kernels.triton.sampling.logit_changes import (
        add_to_entries,
        count_left,
        forbid_masked,
        penalise_tokens,
        restore_empty,
    )
    from kvasir.kernels.triton.sampling.race import pick_tokens, race_tokens

    return {
        "race": race_tokens,
        "scale": scale_rows,
        "limits": find_limits,
        "pick": pick_tokens,
        "mask": forbid_masked,
        "left": count_left,
        "restore": restore_empty,
        "bias": add_to_entries,
        "penalties": penalise_tokens,
    }


def _race(*, random: bool = False, scaled: bool = False, limited: bool = False) -> dict[str, object]:
    return race_constants(random=random, scaled=scaled, limited=limited, interpreted=False)


def _limits(*, floored: bool, filtered: bool) -> dict[str, object]:
    return limit_constants(VOCAB, floored=floored, filtered=filtered)
