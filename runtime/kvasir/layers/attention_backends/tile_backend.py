"""Attention on a CPU, by the kernels or for prompts by torch, as prompt_choice measures."""

from collections.abc import Set

from torch import Tensor

from kvasir.kernels.cpu import LANES, MAX_HEAD_NUMBERS, MAX_TILE_ROWS, kernels_for
from kvasir.layers.attention import AttentionPlanner, BlockTable, HeadShape, KVCache, head_major_cache
from kvasir.layers.attention_backends.prompt_choice import prompt_planner
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import StepMemory


class TileBackend:
    name = "cpu"

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool:
        fits = heads.head_dim % LANES == 0 and heads.head_dim <= MAX_HEAD_NUMBERS and heads.group <= MAX_TILE_ROWS
        fits = fits and not spec.block.is_fp8
        return fits and kernels_for(placement.device, placement.dtype) is not None

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
    ) -> AttentionPlanner:
        kernels = kernels_for(placement.device, placement.dtype)
        assert kernels is not None, "a planner needs a group that the backend supports"
        return prompt_planner(kernels, table, spec.block.block_size, heads, windows, placement)
