"""Launches the attention kernels, after checks of shapes and dtypes."""

import math
from dataclasses import dataclass
from typing import Final

import torch
import triton
from torch import Tensor

from kvasir.kernels.triton.device_support import DTYPES, FP8
from kvasir.kernels.triton.kv_write import write_kv
from kvasir.kernels.triton.paged_attention import attend_paged
from kvasir.kernels.triton.rotary import rotate_and_write
from kvasir.kernels.triton.segment_merge import merge_segments
from kvasir.kernels.triton.tiling import (
    MERGED_ROWS,
    OPTIONS,
    WRITE_TOKENS,
    AttentionTile,
    PagedShape,
    attend_constants,
    merge_constants,
    rotated_write_constants,
    write_constants,
)

# Triton's interpreter runs the kernels on a CPU.
INTERPRETED: Final = bool(triton.knobs.runtime.interpret)
_LOG2_E: Final = math.log2(math.e)


@dataclass(frozen=True)
class Partials:
    """The partial results of split items, which all layers share."""

    out: Tensor  # [slots, kv_heads, rows, head_dim] float32
    maximum: Tensor  # [slots, kv_heads, rows] float32
    total: Tensor  # [slots, kv_heads, rows] float32

    @classmethod
    def empty(cls, num_slots: int, shape: PagedShape, tile: AttentionTile, device: torch.device) -> "Partials":
        size = (max(1, num_slots), shape.kv_heads, tile.rows)
        out = torch.empty(*size, shape.head_dim, dtype=torch.float32, device=device)
        maximum, total = (torch.empty(size, dtype=torch.float32, device=device) for _ in range(2))
        return cls(out, maximum, total)


@dataclass(frozen=True)
class Work:
    """The work of a step on the device, for layers of one window (work_list.py)."""

    tables: Tensor  # [numbers] int32
    items: Tensor  # [N, 8] int32
    merges: Tensor  # [M, 4] int32
    partials: Partials


class PagedKernels:
    """The kernels for one shape of heads and cache. Raises ValueError for other shapes.

    The cache has the dtype of the queries, or float8_e4m3fn with K and V divided by their scales.
    """

    def __init__(self, shape: PagedShape) -> None:
        self._shape = shape

    def write(
        self, slots: Tensor, kv: Tensor, cache: Tensor, *, k_scale: float = 1.0, v_scale: float = 1.0
    ) -> None:  # kv [T, 2 * kv_heads * head_dim], slots [T]
        shape, tokens = self._shape, len(slots)
        self._check(kv, 2 * shape.kv_heads, tokens, cache, "kv")
        grid = (triton.cdiv(tokens, WRITE_TOKENS), 2 * shape.kv_heads)
        inverses = 1.0 / k_scale, 1.0 / v_scale
        write_kv[grid](cache, kv, slots, tokens, kv.stride(0), *inverses, **write_constants(shape), **OPTIONS)

    def rotate_and_write(
        self,
        slots: Tensor,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: Tensor,
        *,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        """Rotate Q in place, and write rotated K and V to the slots [T].

        qkv [T, (heads + 2 * kv_heads) * head_dim]; cos, sin [T, 1, dim]
        """
        shape, tokens = self._shape, len(slots)
        self._check(qkv, shape.heads + 2 * shape.kv_heads, tokens, cache, "qkv")
        dim = cos.shape[-1]
        for angles in (cos, sin):
            fits = angles.shape == (tokens, 1, dim) and angles.is_contiguous() and angles.dtype == qkv.dtype
            if not fits or dim % 2 or dim > shape.head_dim:
                raise ValueError(f"the kernel does not take angles of shape {list(angles.shape)}, {angles.dtype}")
        rotate_and_write[triton.cdiv(tokens, WRITE_TOKENS), shape.heads + 2 * shape.kv_heads](
            cache,
            qkv,
            cos,
            sin,
            slots,
            tokens,
            qkv.stride(0),
            1.0 / k_scale,
            1.0 / v_scale,
            **rotated_write_constants(shape, dim),
            **OPTIONS,
        )

    def attend(
        self,
        work: Work,
        tile: AttentionTile,
        q: Tensor,
        cache: Tensor,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> Tensor:  # q [T, heads * head_dim] → the same shape
        shape, partials = self._shape, work.partials
        self._check(q, shape.heads, len(q), cache, "q")
        self._check_sinks(sinks)
        out = q.new_empty(q.shape)
        if cache.dtype == FP8:
            scale *= k_scale
        inner, outer = (0.0, scale) if softcap is None else (2 * scale / softcap, softcap)
        attend_paged[len(work.items), shape.kv_heads](
            out,
            q,
            cache,
            work.tables,
            work.items,
            partials.out,
            partials.maximum,
            partials.total,
            q if sinks is None else sinks,
            inner,
            outer * _LOG2_E,
            v_scale,
            window or 0,
            q.stride(0),
            **attend_constants(
                shape,
                tile,
                windowed=window is not None,
                capped=softcap is not None,
                sinks=sinks is not None,
                exact=q.dtype == torch.float32,
                interpreted=INTERPRETED,
            ),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **OPTIONS,
        )
        if len(work.merges):
            merge_segments[len(work.merges), shape.kv_heads, tile.rows // MERGED_ROWS](
                out,
                partials.out,
                partials.maximum,
                partials.total,
                work.merges,
                **merge_constants(shape, tile),
                **OPTIONS,
            )
        return out

    def _check_sinks(self, sinks: Tensor | None) -> None:
        if sinks is None:
            return
        if sinks.shape != (self._shape.heads,) or sinks.dtype != torch.float32 or not sinks.is_contiguous():
            raise ValueError(f"the kernel does not take sinks of shape {list(sinks.shape)}, {sinks.dtype}")

    def _check(self, x: Tensor, heads: int, tokens: int, cache: Tensor, name: str) -> None:
        shape = self._shape
        if x.shape != (tokens, heads * shape.head_dim) or x.stride(1) != 1:
            raise ValueError(f"the kernel does not take {name} of shape {list(x.shape)} and this stride")
        if x.dtype not in DTYPES or cache.dtype not in (x.dtype, FP8):
            raise ValueError(f"the kernel does not take {name} of {x.dtype} and a cache of {cache.dtype}")
        if cache.shape[1:] != (2, shape.kv_heads, shape.block_size, shape.head_dim) or not cache.is_contiguous():
            raise ValueError(f"the kernel does not take a cache of shape {list(cache.shape)}")
