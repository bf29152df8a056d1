"""A worker's place among the ranks of its engine."""

from dataclasses import dataclass, field

from kvasir.parallel.group import Alone, Group


@dataclass(frozen=True)
class ParallelState:
    """The groups that a rank belongs to; by default it is the only rank.

    With T tensor ranks and P stages, rank r of the engine has place r % T in stage r // T.
    """

    tensor: Group = field(default_factory=Alone)
    """The ranks that each hold a part of the same layers."""
    pipeline: Group = field(default_factory=Alone)
    """The ranks of the same place in all stages; its rank is the stage."""
    expert_parallel: bool = False
    """Tensor ranks hold whole experts instead of a part of each."""
