"""AdapterSlots: which tokens of a step belong to which LoRA adapter; all layers of a worker share it."""

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from kvasir.kernels.triton.experts.expert_kernels import Blocks  # imports triton

Ints = npt.NDArray[np.int64]

# Tests set "cpu" for Triton's interpreter.
_KERNEL_DEVICE: Final = "cuda"


class AdapterSlots:
    """The engine puts an adapter into one of `count` slots before the first step that needs it."""

    def __init__(self, count: int, max_rank: int, device: torch.device) -> None:
        self.count = count
        self.max_rank = max_rank
        self.on_device = device.type == _KERNEL_DEVICE
        # By slot in this step: the places of its tokens [N] among the step's T; None: it has all. On CPUs.
        self.groups: tuple[tuple[int, Tensor | None], ...] = ()
        self.there: Tensor | None = None  # [T] slots, -1 without an adapter; None: no token has one. On GPUs.
        self._blocks: tuple[Blocks, int] | None = None

    def begin(self, token_slots: Ints | None) -> None:
        """Begin a step on a CPU. `token_slots`: [T], -1 without an adapter; None if no token has one."""
        if token_slots is None:
            self.groups = ()
            return
        slots = [int(slot) for slot in np.unique(token_slots) if slot >= 0]
        if len(slots) == 1 and bool((token_slots >= 0).all()):
            self.groups = ((slots[0], None),)
            return
        self.groups = tuple((slot, torch.from_numpy(np.flatnonzero(token_slots == slot))) for slot in slots)

    def begin_forward(self, there: Tensor | None) -> None:
        """Begin a forward pass, or its capture in a graph, on a GPU."""
        self.there, self._blocks = there, None

    def blocks(self, dtype: torch.dtype) -> "tuple[Blocks, int]":
        """Return the step's rows by slot, which the first layer sorts, and the rows of a block."""
        if self._blocks is None:
            from kvasir.kernels.triton.adapters.adapter_products import rows_by_slot  # imports triton

            assert self.there is not None, "no token of the step has an adapter"
            self._blocks = rows_by_slot(self.there, self.count, dtype)
        return self._blocks
