"""Attention, writes to the cache and fused operations for tools/compile_kernels.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kvasir.kernels.triton.tiling import (
    FP8_TILES,
    OPTIONS,
    PagedShape,
    StepKind,
    attend_constants,
    attention_tile,
    has_usual_heads,
    merge_constants,
    write_constants,
)
from tools import kernel_variants_fused as fused
from tools.kernel_targets import DTYPE_BYTES, Source, Target, Variant

_TYPES: Final = MappingProxyType(
    {
        **dict.fromkeys(("slots", "tables", "items", "merges"), "*i32"),
        **dict.fromkeys(("partial_out", "partial_max", "partial_sum", "sinks"), "*fp32"),
        **dict.fromkeys(("num_tokens", "window", "kv_stride", "q_stride"), "i32"),
        **dict.fromkeys(("inner_scale", "outer_scale", "v_scale", "k_inverse", "v_inverse"), "fp32"),
        **fused.TYPES,
    }
)
# Multiples of 16 in every launch, as all addresses are: heads have multiples of 16 numbers.
_DIVISIBLE: Final = ("kv_stride", "q_stride", *fused.DIVISIBLE)


@dataclass(frozen=True)
class AttentionVariant(Variant):
    kernel: str
    dtype: str
    head_dim: int
    # The StepKind of the tile; the form of a fused operation; or "".
    step: str
    # A window, a cap and sinks: kernels with all need the most registers.
    masks: bool = True
    # The KV cache is float8_e4m3fn.
    fp8: bool = False

    @property
    def name(self) -> str:
        plain, cache = "" if self.masks else "plain", "fp8" if self.fp8 else ""
        parts = (self.kernel, self.dtype, cache, str(self.head_dim), self.step, plain)
        return " ".join(part for part in parts if part)

    @property
    def shape(self) -> PagedShape:
        return PagedShape(heads=32, kv_heads=8, head_dim=self.head_dim, block_size=16)

    def runs_on(self, target: Target) -> bool:
        return target.fp8 or not self.fp8

    def has_measured_tile(self, target: Target) -> bool:
        usual = has_usual_heads(self.shape, DTYPE_BYTES[self.dtype], target.warp_size)
        return self.kernel == "attend" and not self.fp8 and usual and target.tiles.measured is not None

    def source(self, target: Target) -> Source:
        from kvasir.kernels.triton.kv_write import write_kv
        from kvasir.kernels.triton.paged_attention import attend_paged
        from kvasir.kernels.triton.segment_merge import merge_segments

        shape, dtype_bytes = self.shape, DTYPE_BYTES[self.dtype]
        kind = StepKind(self.step) if self.kernel in ("attend", "merge") else StepKind.DECODES
        tiles = FP8_TILES if self.fp8 else target.tiles.attention
        tile = attention_tile(shape, dtype_bytes, kind, tiles, warp_size=target.warp_size)
        options: dict[str, object] = {**OPTIONS}
        kernel: Any
        if self.kernel in fused.KERNELS:
            kernel, constants, num_warps = fused.launch(self.kernel, self.head_dim, self.step, target.warp_size)
            options["num_warps"] = num_warps
        elif self.kernel == "write":
            kernel, constants = write_kv, write_constants(shape)
        elif self.kernel == "merge":
            kernel, constants = merge_segments, merge_constants(shape, tile)
        else:
            kernel = attend_paged
            constants = attend_constants(
                shape,
                tile,
                windowed=self.masks,
                capped=self.masks,
                sinks=self.masks,
                exact=self.dtype == "fp32",
                interpreted=False,
            )
            options |= {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
        types = {**_TYPES, "cache": "*fp8e4nv"} if self.fp8 else _TYPES
        return Source.of(kernel, constants, types, self.dtype, divisible=_DIVISIBLE, options=options)


def attention_variants() -> Iterator[AttentionVariant]:
    for dtype in ("bf16", "fp16", "fp32"):
        for head_dim in (64, 80, 128, 256):
            if dtype != "fp32" and head_dim <= 128:  # others have the tiles of decodes
                yield AttentionVariant("attend", dtype, head_dim, "few")
            yield AttentionVariant("attend", dtype, head_dim, "decode")
            if dtype != "fp32":  # whose prefills have the tiles of decodes
                yield AttentionVariant("attend", dtype, head_dim, "prefill")
    for step in ("few", "decode", "prefill"):
        yield AttentionVariant("attend", "bf16", 128, step, masks=False)
    for dtype in ("bf16", "fp32"):
        for head_dim in (80, 128, 256):
            yield AttentionVariant("merge", dtype, head_dim, "decode")
            yield AttentionVariant("write", dtype, head_dim, "")
    yield AttentionVariant("merge", "bf16", 128, "prefill")
    yield from _fp8_variants()
    for name in fused.names():
        yield AttentionVariant(*name)


def _fp8_variants() -> Iterator[AttentionVariant]:
    for dtype, head_dim in (("bf16", 64), ("bf16", 128), ("bf16", 256), ("fp16", 128)):
        for step in ("decode", "prefill"):
            yield AttentionVariant("attend", dtype, head_dim, step, fp8=True)
    for step in ("decode", "prefill"):
        yield AttentionVariant("attend", "bf16", 128, step, masks=False, fp8=True)
    for kernel in ("write", "rotate_write"):
        yield AttentionVariant(kernel, "bf16", 128, "", fp8=True)
