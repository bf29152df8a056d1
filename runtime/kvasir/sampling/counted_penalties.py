"""CountedPenalties: penalties with token counts on the device."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.kernels.triton.device_support import has_kernels
from kvasir.kernels.triton.sampling.sizes import IN_OUTPUT


@dataclass(frozen=True)
class CountedPenalties:
    # counts: IN_PROMPT if in the prompt, plus IN_OUTPUT per time in the output

    rows: Tensor  # [N]
    slots: Tensor  # [N] int64, each once
    host_slots: npt.NDArray[np.int64]  # [N]
    counts: Tensor  # [S, V] int32
    params: Tensor  # [S, 3] float64: repetition, frequency and presence penalty

    def apply_(self, logits: Tensor) -> None:
        # [R, V] float32
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
    # `taken`: frequency plus presence penalty, float32
    return torch.where(logits > 0, logits / repetition, logits * repetition) - taken
