"""A worker's place among the ranks of its engine, and among engines."""

from dataclasses import dataclass
from typing import Final

from kvasir.parallel.group import ALONE, Group


class UnevenExperts(ValueError):
    pass


class UnevenSplit(ValueError):
    """A rank's part would split packed numbers or a group with one scale."""


@dataclass(frozen=True)
class ParallelState:
    """The groups of a rank: of T tensor ranks, rank r has place r % T in stage r // T."""

    # parts of the same layers
    tensor: Group = ALONE
    # one rank per stage, with the same place
    pipeline: Group = ALONE
    expert_parallel: bool = False
    # one rank per engine, with the same place
    data: Group = ALONE

    def own_experts(self, count: int) -> range:
        if not self.expert_parallel:
            return range(count)
        ranks = self.data.size * self.tensor.size
        if count % ranks:
            raise UnevenExperts(
                f"{ranks} ranks cannot hold the same number of {count} experts: choose a divisor of {count}"
            )
        share, rank = count // ranks, self.data.rank * self.tensor.size + self.tensor.rank
        return range(share * rank, share * (rank + 1))


SINGLE: Final = ParallelState()
