"""LogitChanges: the changes of logits before tokens are chosen."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir.kernels.triton.device_support import has_kernels
from kvasir.sampling.counted_penalties import CountedPenalties, penalise


@dataclass(frozen=True)
class Entries:
    rows: Tensor  # [M]
    tokens: Tensor  # [M]


@dataclass(frozen=True)
class Allowed:
    rows: Tensor  # [N] with an allow-list
    entries: Entries


@dataclass(frozen=True)
class Bias:
    entries: Entries
    added: Tensor  # [M] float32

    def apply_(self, logits: Tensor) -> None:
        at = self.entries
        if has_kernels(logits.device):
            from kvasir.kernels.triton.sampling.logit_kernels import add_bias  # imports triton

            add_bias(logits, at.rows, at.tokens, self.added)
        else:
            logits[at.rows, at.tokens] += self.added


@dataclass(frozen=True)
class Penalties:
    entries: Entries
    repetition: Tensor  # [M] float32
    taken: Tensor  # [M] float32: frequency plus presence penalty

    def apply_(self, logits: Tensor) -> None:
        at = self.entries
        logits[at.rows, at.tokens] = penalise(logits[at.rows, at.tokens], self.repetition, self.taken)


@dataclass(frozen=True)
class LogitChanges:
    """Changes in vLLM's order; `forbidden`: bad words and min_tokens."""

    allowed: Allowed | None
    forbidden: Entries | None
    bias: Bias | None
    penalties: Penalties | None
    counted: CountedPenalties | None = None  # of other rows than `penalties`

    def apply_(self, logits: Tensor) -> None:
        # [R, V] float32
        if self.allowed is not None:
            at = self.allowed.entries
            kept = logits[at.rows, at.tokens]
            logits[self.allowed.rows] = -torch.inf
            logits[at.rows, at.tokens] = kept
        if self.forbidden is not None:
            logits[self.forbidden.rows, self.forbidden.tokens] = -torch.inf
        if self.bias is not None:
            self.bias.apply_(logits)
        if self.penalties is not None:
            self.penalties.apply_(logits)
        if self.counted is not None:
            self.counted.apply_(logits)
