"""Attention by Triton kernels on a GPU, which read the paged cache in place."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from kvasir.kernels.triton.device_support import DTYPES, can_compile, log_unproven, log_unproven_fp8
from kvasir.kernels.triton.tiling import MAX_GROUP, MAX_NUMBERS, MULTIPLE_OF, AttentionTile
from kvasir.layers.attention import BlockTable, HeadShape, KVCache, head_major_cache
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rotation
from kvasir.layers.step_memory import StepMemory

if TYPE_CHECKING:
    from kvasir.kernels.triton.paged_kernels import PagedKernels, Work
    from kvasir.layers.attention_backends.triton_planner import TritonPlanner


@dataclass(frozen=True)
class TritonPlan:
    kernels: "PagedKernels"
    tile: AttentionTile
    slots: Tensor  # [T] int32: block * block_size + place in it, where each token's K and V are written
    # By window. None: all tokens, or a window that no context of this step exceeds.
    work: "Mapping[int | None, Work]"

    def write(self, kv: Tensor, cache: KVCache) -> None:
        scales = cache.scales
        self.kernels.write(self.slots, kv, cache.blocks, k_scale=scales.k, v_scale=scales.v)

    def attend(
        self, q: Tensor, cache: KVCache, scale: float, *, window: int | None = None, softcap: float | None = None
    ) -> Tensor:
        work = self.work.get(window)
        if work is None:
            work, window = self.work[None], None
        return self.kernels.attend(
            work,
            self.tile,
            q,
            cache.blocks,
            scale=scale,
            window=window,
            softcap=softcap,
            k_scale=cache.scales.k,
            v_scale=cache.scales.v,
        )

    def write_and_attend(
        self,
        qkv: Tensor,
        cache: KVCache,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        kv_size = 2 * cache.blocks.shape[2] * cache.blocks.shape[4]
        q, kv = qkv[:, :-kv_size], qkv[:, -kv_size:]
        if rotation is None:
            self.write(kv, cache)
        else:
            self.kernels.rotate_and_write(
                self.slots,
                qkv,
                rotation.cos,
                rotation.sin,
                cache.blocks,
                k_scale=cache.scales.k,
                v_scale=cache.scales.v,
            )
        return self.attend(q, cache, scale, window=window, softcap=softcap)


class TritonBackend:
    """Tests pass `device_type="cpu"`, for Triton's interpreter."""

    name = "triton"

    def __init__(self, device_type: str = "cuda") -> None:
        self._device_type = device_type

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool:
        fits = heads.head_dim % MULTIPLE_OF == 0 and heads.head_dim <= MAX_NUMBERS and heads.group <= MAX_GROUP
        there = placement.device.type == self._device_type and placement.dtype in DTYPES
        return fits and there and can_compile(placement.device)

    def cache(self, memory: Tensor, block: BlockShape, group: int) -> KVCache:
        return head_major_cache(memory, block, group)

    def planner(
        self,
        table: BlockTable,
        spec: KVSpec,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
        memory: StepMemory,
    ) -> "TritonPlanner":
        from kvasir.layers.attention_backends.triton_planner import TritonPlanner  # imports triton

        log_unproven(placement.device)
        block = spec.block
        if block.is_fp8:
            log_unproven_fp8()
        return TritonPlanner(table, block.block_size, heads, windows, placement, memory, is_fp8=block.is_fp8)
