"""AdapterSlots: which tokens of a step belong to which LoRA adapter; all layers of a worker share it."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]


class AdapterSlots:
    """The engine puts an adapter into one of `count` slots before the first step that needs it."""

    def __init__(self, count: int, max_rank: int) -> None:
        self.count = count
        self.max_rank = max_rank
        # By slot in this step: the places of its tokens [N] among the step's T; None: it has all. On CPUs.
        self.groups: tuple[tuple[int, Tensor | None], ...] = ()

    def begin(self, token_slots: Ints | None) -> None:
        """Begin a step. `token_slots`: [T], -1 without an adapter; None if no token has one."""
        if token_slots is None:
            self.groups = ()
            return
        slots = [int(slot) for slot in np.unique(token_slots) if slot >= 0]
        if len(slots) == 1 and bool((token_slots >= 0).all()):
            self.groups = ((slots[0], None),)
            return
        self.groups = tuple((slot, torch.from_numpy(np.flatnonzero(token_slots == slot))) for slot in slots)
