"""Attention by Triton kernels on a GPU, which read the paged cache in place."""

from collections.abc import Set
from typing import TYPE_CHECKING

from torch import Tensor

from kvasir.kernels.triton.device_support import DTYPES, can_compile, log_unproven, log_unproven_fp8
from kvasir.kernels.triton.tiling import MAX_GROUP, MAX_NUMBERS, MULTIPLE_OF
from kvasir.layers.attention import BlockTable, HeadShape, KVCache, head_major_cache
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import StepMemory

if TYPE_CHECKING:
    from kvasir.layers.attention_backends.triton_planner import TritonPlanner


class TritonBackend:
    name = "triton"

    # Tests pass "cpu" for Triton's interpreter.
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
