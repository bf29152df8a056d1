"""The plan of a model that keeps a cache of its own for each request: only the rows of a step."""

from collections.abc import Set
from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor

from kvasir.layers.attention import BlockTable, HeadShape, KVCache, StepRows
from kvasir.layers.kv import BlockShape, KVSpec, PerRequest
from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import StepMemory


@dataclass(frozen=True)
class RequestRows:
    step: StepRows

    def write(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("the model keeps K and V itself")

    attend = write_and_attend = write


class PerRequestBackend:
    name = "the model's own"

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool:
        return isinstance(spec, PerRequest) and not spec.block.is_fp8

    def cache(self, memory: Tensor, block: BlockShape, group: int) -> KVCache:
        raise NotImplementedError("the model keeps K and V itself")

    def planner(
        self,
        table: BlockTable,
        spec: KVSpec,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
        memory: StepMemory,
    ) -> "PerRequestBackend":
        return self

    def plan(self, step: StepRows) -> RequestRows:
        return RequestRows(step)
