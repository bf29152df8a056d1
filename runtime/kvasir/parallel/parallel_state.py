"""A worker's place among the ranks of its engine."""

from dataclasses import dataclass
from typing import Final

from kvasir.parallel.group import ALONE, Group


@dataclass(frozen=True)
class ParallelState:
    """The groups that a rank belongs to; by default it is the only rank.

    With T tensor ranks and P stages, rank r of the engine has place r % T in stage r // T.
    """

    tensor: Group = ALONE
    """The ranks that each hold a part of the same layers."""
    pipeline: Group = ALONE
    """The ranks of the same place in all stages; its rank is the stage."""
    expert_parallel: bool = False
    """Tensor ranks hold whole experts instead of a part of each."""


SINGLE: Final = ParallelState()
"""Of an engine with one rank."""
