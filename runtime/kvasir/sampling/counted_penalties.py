"""CountedPenalties: penalties whose token counts are on the device."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.kernels.triton.device_support import has_kernels
from kvasir.kernels.triton.sampling.sizes import IN_OUTPUT


@dataclass(frozen=True)
class CountedPenalties:
    """The penalties of N rows. Counts: IN_PROMPT if in the prompt, plus IN_OUTPUT per time in the output."""

    rows: Tensor  # [N] their places in the logits
    slots: Tensor  # [N] int64, none of them twice
    host_slots: npt.NDArray[np.int64]  # the same on the host
    counts: Tensor  # [S, V] int32
    params: Tensor  # [S, 3] float64: repetition, frequency and presence penalty

    def apply_(self, logits: Tensor) -> None:
        """Change logits [R, V] float32 in place."""
        if has_kernels(logits.device):
            from kvasir.kernels.triton.sampling.logit_kernels import penalise_counted  # imports triton

            penalise_counted(logits, self.rows, self.slots, self.counts, self.params)
        else:
            counts = self.counts[self.slots]  # [N, V]
            repetition, frequency, presence = self.params[self.slots, :, None].unbind(1)  # [N, 1] each
            times = counts // IN_OUTPUT
            taken = (frequency * times + presence * (times > 0)).float()  # [N, V], rounded once
            values = logits[self.rows]  # [N, V]
            logits[self.rows] = torch.where(counts > 0, penalise(values, repetition.float(), taken), values)

    def add_(self, tokens: Tensor) -> None:
        self.counts[self.slots, tokens[self.rows]] += IN_OUTPUT


def penalise(logits: Tensor, repetition: Tensor, taken: Tensor) -> Tensor:
    """Return penalised logits, all float32. `taken`: frequency and presence penalty together."""
    return torch.where(logits > 0, logits / repetition, logits * repetition) - taken
